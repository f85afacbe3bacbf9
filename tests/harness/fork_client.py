"""Stands for a rank's Python: `python -I -S fork_client.py SOCKET SCRIPT ARGS...`, or `SOCKET -m MODULE ARGS...`.

The client asks `fork_server.py` for a process that runs the script, passes signals on to that process, and ends as it ends.
"""

import array
import contextlib
import json
import os
import resource
import signal
import socket
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGABRT)


def open_descriptors() -> list[int]:
    """The file descriptors of this process that the command inherits."""
    return [int(name) for name in os.listdir("/proc/self/fd") if inheritable(int(name))]


def inheritable(descriptor: int) -> bool:
    """Whether a descriptor is open and stays so in a new program."""
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # that of the listing itself
        return False


def end_as(status: int) -> None:
    """Ends this process with the exit code or by the signal of a wait status."""
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if os.WTERMSIG(status) in PASSED_ON:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def main() -> None:
    """Sends the request, and follows the process to its end."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(sys.argv[1])
    request = {
        "arguments": sys.argv[2:],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "descriptors": open_descriptors(),
    }
    rights = array.array("i", request["descriptors"])
    # The process may run, and its tests send signals, before the handlers are there.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    server.sendmsg([json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    pid = int(server.recv(64))

    def pass_on(number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    end_as(int(server.recv(64) or 9))


if __name__ == "__main__":
    main()
