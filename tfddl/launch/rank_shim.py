"""Runs one rank: sends its output and exit status to tfddlrun, and leaves no process behind.

mpirun starts this file as a script by `python -I -S`, which needs no installed package and takes 30 ms. The script becomes
three processes:

    stub         mpirun's child, which mpirun may kill at any time; it only waits
    supervisor   holds the connection to tfddlrun; it notices the death of the stub, and outlives the stub long enough
                 to send the rank's last output (MPICH answers MPI_Abort with SIGKILL, at once)
    the rank     the user's command, in a session of its own

The command comes in environment variables, since mpirun would read options of its own out of the command's arguments.
Without tfddlrun's variables the script executes its arguments, so a line that `tfddlrun --dry-run` has printed also runs by
hand.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from functools import partial

# JSON: hosts, port, token, job, scratch: [directory], terminal: [stdout, stderr], columns, rows
VARIABLE = "TFDDL_LAUNCH"
# TFDDL_COMMAND_0, TFDDL_COMMAND_1 and so on: the command of a rank, in parts, since Linux takes 128 KiB in one variable.
COMMAND_VARIABLE = "TFDDL_COMMAND_"
_PART = 100_000
HEADER = struct.Struct(">cI")  # kind and length of each message to tfddlrun
HELLO, OUTPUT, ERROR, WAITS, LEAVES, GOES_ON, ENDED = b"H", b"O", b"E", b"W", b"V", b"G", b"X"
# From tfddlrun, one byte each. LOOK: a rank has ended, so say it if this rank waits for all ranks, or goes on without it.
# HAND_OVER: the job is to end at its next commit, and starts again on other hosts.
TERMINATE, KILL, LOOK, HAND_OVER = b"T", b"K", b"L", b"U"
# Signals that tfddlrun passes on to ranks that wait for them; the first one asks for a flight record.
PASSED_ON = {b"1": signal.SIGUSR1, b"2": signal.SIGUSR2}
# For all processes of a rank, before the terminal stops tfddlrun (Ctrl-Z) and when it goes on. They ignore SIGTSTP.
SUSPEND, RESUME = b"S", b"C"

GRACE_S = 5.0  # between SIGTERM and SIGKILL
ABORT_S = 0.3  # mpirun also kills the rank that called MPI_Abort: time for it to exit with its own code
LEFTOVER_S = 2.0  # for processes that a rank leaves behind, before each stronger signal
CONNECT_S = 5.0  # for each of tfddlrun's addresses
LOOK_S = 1.0  # between two looks whether the rank waits
LEAVE_S = 120.0  # for a commit, after the host has been told to leave

COMMITS_VARIABLE = "TFDDL_COMMITS"  # the folder of an elastic job's commits, on each host
STATE_VARIABLE = "TFDDL_STATE_DIR"  # a folder on a disk for the same
JOB_VARIABLE = "TFDDL_JOB"  # the name of this start of the job, for the ranks
SURVIVE_VARIABLE = "TFDDL_SURVIVE"  # 1: ranks may go on in their processes when others have died
# Files in the folder of the commits, by which the supervisor and its rank talk, each behind the job's name. All but the
# first are followed by the rank's session. The last one holds the number of ranks with which the rank goes on.
HAND_OVER_FILE, HANDED_OVER_FILE, CATCHES_FILE, GOES_ON_FILE = (
    "hand-over",
    "handed-over",
    "catches",
    "goes-on",
)
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
KILLS = (signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def command_variables(command: Sequence[str]) -> dict[str, str]:
    """The environment variables that bring a command to its shim without a change, whichever mpirun starts it."""
    text = base64.b64encode(b"".join(os.fsencode(word) + b"\0" for word in command)).decode()
    starts = range(0, len(text), _PART)
    return {f"{COMMAND_VARIABLE}{index}": text[start : start + _PART] for index, start in enumerate(starts)}


def take_command() -> list[str]:
    """Takes the command out of the environment; it is empty if there is none."""
    parts: list[str] = []
    while (part := os.environ.pop(f"{COMMAND_VARIABLE}{len(parts)}", None)) is not None:
        parts.append(part)
    return [os.fsdecode(word) for word in base64.b64decode("".join(parts)).split(b"\0")[:-1]]


def not_started(command: Sequence[str], error: OSError) -> tuple[int, str]:
    """The exit code, as in a shell, and the line for a command that cannot run."""
    status = 127 if isinstance(error, FileNotFoundError) else 126
    return status, f"tfddlrun: cannot run '{command[0]}': {_why_not(command[0], error)}\n"


def _why_not(program: str, error: OSError) -> str:
    """Why a program cannot run, and what to do."""
    is_file = os.path.isfile(program)
    if program.endswith(".py"):
        reason = "it is no program" if is_file else error.strerror
        return f"{reason}; start a Python script by Python: python {program}"
    if os.path.isdir(program):
        return "it is a folder; give the path of a program"
    if not is_file:
        return f"{error.strerror}; give the path of a program"
    if "/" not in program:
        return f"it is not on PATH; give its path: ./{program}"
    if isinstance(error, PermissionError):
        return f"it may not be executed; run chmod +x {program}"
    if isinstance(error, FileNotFoundError):
        return "the program in its line #! does not exist; correct that line"
    return f"{error.strerror}; begin a script with a line such as #!/bin/sh"


def connect(settings: dict) -> socket.socket:
    """Connects to the first address of tfddlrun that answers. Exits with an error if none does."""
    problems = []
    for host in settings["hosts"]:
        try:
            connection = socket.create_connection((host, settings["port"]), timeout=CONNECT_S)
        except OSError as error:
            problems.append(f"{host} ({error})")
        else:
            connection.settimeout(None)
            keep_alive(connection)
            return connection
    sys.exit(
        f"tfddlrun: {socket.gethostname()} cannot connect to the host where tfddlrun runs; mpirun's own "
        "daemons can: look for a firewall that lets only some ports pass. "
        f"Tried: port {settings['port']} of {', '.join(problems)}"
    )


def keep_alive(connection: socket.socket) -> None:
    """Makes the connection notice within a minute that the other host is gone, and send small messages at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("NODELAY", 1), ("KEEPIDLE", 30), ("KEEPINTVL", 10), ("KEEPCNT", 3)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{option}"), value)


class Supervisor:
    """Follows one rank to the end of its last descendant. The descriptor `stub` becomes readable when the stub dies."""

    def __init__(self, connection: socket.socket, stub: int, settings: dict):
        self._connection = connection
        self._stub, self._stub_process, self._stub_is_gone = stub, os.getppid(), False
        self._settings = settings
        self._selector = selectors.DefaultSelector()
        self._outputs: dict[int, bytes] = {}
        self._pid = 0
        self._kills = _kills_for_memory()
        self._status: int | None = None
        self._look_at = float("inf")
        self._alone = False  # without tfddlrun
        self._told = False  # to end its rank
        self._frozen = False
        self._looks = 0  # that have found the rank in hvd.init()
        self._goes_on = ""  # what has been sent
        self._has_reported = False  # the end of the rank
        self._terminate_at = self._kill_at = float("inf")
        self._terminated = False
        self._elastic = COMMITS_VARIABLE in os.environ
        self._sigterm = False  # in an elastic job, from elsewhere than tfddlrun: the host leaves
        self._leaves_at = float("inf")  # then the rank is ended

    def run(self, command: list[str]) -> int:
        """Runs the command to its end. Returns its exit status: 128 + n after signal n."""
        try:
            return self._run(command)
        except Exception:
            import traceback  # takes 10 ms

            text = f"tfddlrun: internal error in the supervisor of the rank:\n{traceback.format_exc()}"
            self._send(ERROR, text.encode(errors="replace"))
            self._report_end(status=1, stopped=False)
            if self._pid:
                _signal_group(self._pid, signal.SIGKILL)
            return 1

    def _run(self, command: list[str]) -> int:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._watch_signals()
        self._say_hello()
        try:
            self._start(command)
        except OSError as error:
            return self._report_not_started(command, error)
        self._selector.register(self._connection, selectors.EVENT_READ, self._on_command)
        self._selector.register(self._stub, selectors.EVENT_READ, self._on_stub_gone)
        while (status := self._status) is None:
            self._turn(min(self._signal_when_due(), self._look_when_due()))
            if self._sigterm and self._leaves_at == float("inf"):
                self._leave()
            self._reap()
        self._drain()
        self._report_going_on()
        self._report_end(
            status=status,
            stopped=self._terminated and self._terminate_at != self._leaves_at,
            frozen=self._frozen,
            handed_over=self._elastic and os.path.exists(self._file(HANDED_OVER_FILE, self._pid)),
            out_of_memory=status in (-signal.SIGKILL, 128 + signal.SIGKILL)
            and _kills_for_memory() > self._kills,
        )
        if os.environ.get(SURVIVE_VARIABLE) == "1" and is_killed(status) and not self._stub_is_gone:
            with contextlib.suppress(ProcessLookupError):
                # MPI tells the other ranks of this end, and of no exit code.
                os.kill(self._stub_process, signal.SIGKILL)
        self._end_descendants(gently=status == 0 and self._kill_at == float("inf"))
        if self._alone:
            for directory in self._settings["scratch"]:
                shutil.rmtree(directory, ignore_errors=True)
        # A tfddlrun that has sent a command may start the job again, and needs the commits.
        if self._alone and not self._told and COMMITS_VARIABLE in os.environ:
            shutil.rmtree(os.environ[COMMITS_VARIABLE], ignore_errors=True)
        return status if status >= 0 else 128 - status

    def _say_hello(self) -> None:
        hello = {"token": self._settings["token"], "rank": rank(), "host": socket.gethostname()}
        self._send(HELLO, json.dumps(hello).encode())

    def _start(self, command: list[str]) -> None:
        streams = []
        for kind, terminal in zip((OUTPUT, ERROR), self._settings["terminal"], strict=True):
            ours, theirs = _terminal(self._settings) if terminal else os.pipe()
            os.set_blocking(ours, False)
            streams.append(theirs)
            self._outputs[ours] = kind
            self._selector.register(ours, selectors.EVENT_READ, partial(self._forward, ours))
        if not os.isatty(streams[0]):
            # Python buffers its output to a pipe: lines would come late, and a crash would lose them.
            os.environ.setdefault("PYTHONUNBUFFERED", "1")
        os.environ[JOB_VARIABLE] = self._settings["job"]
        inherited = _inherited_descriptors()
        supervisor = os.getpid()
        try:
            # The object is kept: its end would collect a rank that has ended already, and its status would be lost.
            self._rank = subprocess.Popen(
                command,
                # mpirun's forwarding of stdin never ends (Open MPI 5), or leaves rank 1 waiting (MPICH).
                stdin=subprocess.DEVNULL,
                stdout=streams[0],
                stderr=streams[1],
                start_new_session=True,
                close_fds=False,
                preexec_fn=lambda: _die_with(supervisor),
            )
            self._pid = self._rank.pid
        finally:
            # MPICH gives its rank a socket, and takes the end of the socket for the end of the rank.
            for descriptor in streams + inherited:
                os.close(descriptor)

    def _report_not_started(self, command: list[str], error: OSError) -> int:
        status, text = not_started(command, error)
        self._send(ERROR, os.fsencode(text))
        self._report_end(status=status, stopped=False)
        return status

    def _report_end(self, **ended: object) -> None:
        if not self._has_reported:
            self._has_reported = True
            self._send(ENDED, json.dumps(ended).encode())

    def _watch_signals(self) -> None:
        ours, theirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stop(0))
        if self._elastic:
            signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_sigterm", True))
        for number in PASSED_ON.values():
            signal.signal(number, lambda received, _: _pass_on(self._pid, received) if self._pid else None)
        self._selector.register(ours, selectors.EVENT_READ, lambda: os.read(ours, 512))

    def _turn(self, timeout: float) -> None:
        for key, _ in self._selector.select(None if timeout == float("inf") else timeout):
            key.data()

    def _forward(self, source: int) -> bool:
        """Sends the available output. Returns whether there was any."""
        try:
            data = os.read(source, 65536)
        except BlockingIOError:
            return False
        except OSError:  # a terminal that no process has open any more
            data = b""
        if data:
            self._send(self._outputs[source], data)
        else:
            self._selector.unregister(source)
            del self._outputs[source]
        return bool(data)

    def _drain(self) -> None:
        for source in list(self._outputs):
            while self._forward(source):
                pass

    def _send(self, kind: bytes, payload: bytes) -> None:
        try:
            self._connection.sendall(HEADER.pack(kind, len(payload)) + payload)
        except OSError:
            self._stop(0)  # tfddlrun is gone, so it can neither read this nor end the rank

    def _on_command(self) -> None:
        try:
            command = self._connection.recv(1)
        except OSError:
            command = b""
        if command == LOOK:
            self._look_at = min(self._look_at, time.monotonic())
            return
        if command in PASSED_ON:
            _pass_on(self._pid, PASSED_ON[command])
            return
        if command in (SUSPEND, RESUME):
            _signal_group(self._pid, signal.SIGSTOP if command == SUSPEND else signal.SIGCONT)
            return
        if command == HAND_OVER:
            self._ask_for_hand_over()
            return
        if not command:
            self._selector.unregister(self._connection)
            self._alone = True
        else:
            self._told = True
        self._stop(0)
        if command == KILL:
            self._kill_at = 0.0

    def _file(self, kind: str, session: int | None = None) -> str:
        return rank_file(os.environ.get(COMMITS_VARIABLE, ""), self._settings["job"], kind, session)

    def _ask_for_hand_over(self) -> None:
        path = self._file(HAND_OVER_FILE)
        with contextlib.suppress(OSError):  # without room for the file the job goes on where it is
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            open(path, "w").close()

    def _leave(self) -> None:
        """Says that the host leaves. If the job does not hand over in time, the rank dies of the signal."""
        self._send(LEAVES, b"")
        self._leaves_at = time.monotonic() + LEAVE_S
        self._terminate_at = min(self._terminate_at, self._leaves_at)
        self._kill_at = min(self._kill_at, self._terminate_at + GRACE_S)

    def _kill_if_it_catches(self) -> None:
        """Kills a rank that would take SIGTERM as a notice that its host leaves (`tfddl.elastic.hand_over`)."""
        with contextlib.suppress(OSError, ValueError), open(self._file(CATCHES_FILE, self._pid)) as file:
            os.kill(int(file.read()), signal.SIGKILL)

    def _on_stub_gone(self) -> None:
        self._selector.unregister(self._stub)
        self._stub_is_gone = True
        self._stop(ABORT_S)

    def _stop(self, delay: float) -> None:
        self._terminate_at = min(self._terminate_at, time.monotonic() + delay)
        self._kill_at = min(self._kill_at, self._terminate_at + GRACE_S)

    def _look_when_due(self) -> float:
        """Looks whether the rank waits in `hvd.init()`. Returns the seconds to the next look."""
        now = time.monotonic()
        if now >= self._look_at:
            self._looks = self._looks + 1 if _is_in_init(self._settings["job"]) else 0
            self._look_at = now + LOOK_S
            self._report_going_on()
            if self._looks == 2:  # the first look may find a rank that is about to leave hvd.init()
                self._send(WAITS, b"")
        return self._look_at - now

    def _report_going_on(self) -> None:
        """Says that the rank goes on without others that have died."""
        with contextlib.suppress(OSError), open(self._file(GOES_ON_FILE, self._pid)) as file:
            ranks = file.read()
            if ranks != self._goes_on:
                self._goes_on = ranks
                self._send(GOES_ON, ranks.encode())

    def _signal_when_due(self) -> float:
        """Sends the signals that are due to the rank's session. Returns the seconds to the next signal."""
        now = time.monotonic()
        if now >= self._terminate_at and not self._terminated:
            self._terminated = True
            self._frozen = _is_frozen(self._pid)
            if self._elastic:
                self._kill_if_it_catches()
            _signal_group(self._pid, signal.SIGTERM)
        if now >= self._kill_at:
            self._terminated = True
            _signal_group(self._pid, signal.SIGKILL)
            return 0.1
        due = self._kill_at if self._terminated else self._terminate_at
        return max(0.0, due - now)

    def _reap(self) -> bool:
        """Collects the processes that have ended. Returns whether any is left."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._pid:
                    self._status = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            return False
        return True

    def _end_descendants(self, gently: bool) -> None:
        """Ends the processes that the rank left behind. After a success they first get time to end by themselves."""
        for number in (0, signal.SIGTERM, signal.SIGKILL)[0 if gently else 1 :]:
            deadline = time.monotonic() + LEFTOVER_S
            signalled: set[int] = set()
            while self._reap() and time.monotonic() < deadline:
                for child in _children(os.getpid()) - signalled:
                    os.kill(child, number)
                    signalled.add(child)
                self._turn(0.02)
        self._drain()


def rank_file(folder: str, job: str, kind: str, session: int | None = None) -> str:
    """The path of a file by which a supervisor and its rank talk."""
    return os.path.join(folder, "-".join([job, kind, *([] if session is None else [str(session)])]))


def is_killed(status: int) -> bool:
    """Whether a signal has killed a rank, or its program under a shell, which then exits with 128 + n."""
    return status < 0 or status - 128 in KILLS


def rank() -> int:
    """The number of this process in its job, as mpirun has set it."""
    return int(next(os.environ[name] for name in RANK_VARIABLES if name in os.environ))


def _is_frozen(pid: int) -> bool:
    """Whether a process has been stopped, by SIGSTOP or a debugger."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()[0] in ("T", "t")
    return False


def _kills_for_memory() -> int:
    """How many processes the kernel of this host has killed for lack of memory."""
    with contextlib.suppress(OSError), open("/proc/vmstat") as counts:
        return next((int(line.split()[1]) for line in counts if line.startswith("oom_kill ")), 0)
    return 0


def _is_in_init(job: str) -> bool:
    """Whether the rank is in `hvd.init()`: it holds a socket then, whose name says so (`runtime/watchdog`)."""
    namespace = f"/{os.environ['PMIX_NAMESPACE']}" if "PMIX_NAMESPACE" in os.environ else ""
    start = f"@tfddl/{job}{namespace}/init/{rank()}/"
    with contextlib.suppress(OSError), open("/proc/net/unix", errors="replace") as table:
        return any(start in line for line in table)
    return False


def _terminal(settings: dict) -> tuple[int, int]:
    """Opens a terminal that changes no byte, as wide as tfddlrun's terminal without the prefix.

    Where the host has no terminal to give, as in a chroot without /dev/pts, it opens a pipe.
    """
    try:
        ours, theirs = os.openpty()
    except OSError:
        return os.pipe()
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    termios.tcsetwinsize(theirs, (min(settings["rows"], 65535), min(settings["columns"], 65535)))
    return ours, theirs


def _inherited_descriptors() -> list[int]:
    """File descriptors above stderr that mpirun has passed to the rank."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the descriptor of the directory listing is closed by now
            found += [number] if number > 2 and os.get_inheritable(number) else []
    return found


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Makes the kernel send this process a signal when the process that started it ends.

    The kernel looks at the thread that started it, and also sends the signal when that thread ends. A parent that is
    gone before this call is not noticed: compare `os.getppid()` afterwards.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def _die_with(parent: int) -> None:
    """Makes the kernel kill this new process, which becomes the rank, when the supervisor dies."""
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def _pass_on(process: int, number: int) -> None:
    """Sends a signal to the process, or to those of its descendants that would not die of it."""
    with contextlib.suppress(OSError):  # it has just ended
        with open(f"/proc/{process}/status") as file:
            status = dict(line.split(":", 1) for line in file)
        if any(int(status[mask], 16) >> (number - 1) & 1 for mask in ("SigBlk", "SigIgn", "SigCgt")):
            os.kill(process, number)
            return
    for child in _children(process):
        _pass_on(child, number)


def _children(process: int) -> set[int]:
    with contextlib.suppress(OSError), open(f"/proc/{process}/task/{process}/children") as children:
        return {int(pid) for pid in children.read().split()}
    return set()  # a kernel without this list: only the rank's own session is ended


def _follow(supervisor: int, mpirun: int, signals: set[signal.Signals]) -> int:
    """Waits for the supervisor's end. SIGTERM from mpirun ends the stub; from elsewhere it means that the host leaves."""
    while True:
        received = signal.sigwaitinfo(signals)
        if received.si_signo == signal.SIGTERM:
            if received.si_pid == mpirun:
                os._exit(128 + signal.SIGTERM)
            os.kill(supervisor, signal.SIGTERM)
            continue
        ended, status = os.waitpid(supervisor, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


def _finish(connection: socket.socket) -> None:
    """Waits until tfddlrun has read everything and closes the connection.

    After a command that has come unread, the kernel would reset the connection, and tfddlrun would lose what it has not
    read.
    """
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


def main(command: list[str]) -> int:
    """Runs a command as one rank, that of the environment if there is one. Returns the exit code for mpirun."""
    found = os.environ.pop(VARIABLE, None)
    command = take_command() or command
    if found is None:
        os.execvp(command[0], command)
    # A handler, since the rank would inherit SIG_IGN.
    for number in PASSED_ON.values():
        signal.signal(number, lambda *_: None)
    mpirun = os.getppid()  # or its daemon on this host; it may have ended when its signal is read
    alive, held_by_stub = os.pipe()
    watched = {signal.SIGTERM, signal.SIGCHLD} if COMMITS_VARIABLE in os.environ else set()
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    supervisor = os.fork()
    if supervisor:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        for number in PASSED_ON.values():  # from mpirun
            signal.signal(number, lambda received, _: os.kill(supervisor, received))
        os.closerange(3, held_by_stub)
        os.closerange(held_by_stub + 1, 65536)
        if watched:
            return _follow(supervisor, mpirun, watched)
        return os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
    os.close(held_by_stub)
    os.setsid()
    settings = json.loads(found)
    connection = connect(settings)
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # mpirun waits for the end of both streams; the death of the stub must end them
        os.dup2(nothing, stream)
    status = Supervisor(connection, alive, settings).run(command)
    _finish(connection)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
