"""Starts Python processes that have TensorFlow imported already: `python -m tests.harness.fork_server SOCKET`.

TensorFlow's import takes more than two seconds of a core in each rank of each job. The server imports TensorFlow once
and forks. mpirun starts `fork_client.py`, which sends its arguments, environment and file descriptors to the server,
passes signals on to the forked process, and ends as that process ends. The server kills a process whose client is gone.

The server has one thread, since a fork copies only the thread that forks.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.harness.die_with_parent import die_with

IMPORTS = ("numpy", "tensorflow", "tf_keras" if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else "keras")
MAX_MESSAGE = 1 << 18
MAX_DESCRIPTORS = 253  # SCM_MAX_FD of the kernel

Program = Callable[[], None]


class Server:
    """Forks a process for each client, and tells the client its process id and its wait status.

    Args:
        listener: A listening Unix socket of type SOCK_SEQPACKET.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._pids: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(0, selectors.EVENT_READ, self._stop)

    def serve(self) -> Program:
        """Serves until standard input ends. Returns in forked processes only: with the program of the process."""
        while True:
            key, _ = self._selector.select()[0]  # one event, which may take others away
            if (program := key.data()) is not None:
                return program

    def _stop(self) -> None:
        os._exit(0)

    def _accept(self) -> Program | None:
        client, _ = self._listener.accept()
        descriptors = array.array("i")
        room = socket.CMSG_SPACE(MAX_DESCRIPTORS * descriptors.itemsize)
        message, ancillary, _, _ = client.recvmsg(MAX_MESSAGE, room)
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        if not message:  # the client was killed before it has asked
            client.close()
            return None
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            die_with(server)
            self._close()
            client.close()
            return become(json.loads(message), list(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        self._pids[client] = pid
        ended = os.pidfd_open(pid)
        self._selector.register(ended, selectors.EVENT_READ, partial(self._on_end, client, ended))
        self._selector.register(client, selectors.EVENT_READ, partial(self._on_client_gone, client))
        with contextlib.suppress(OSError):  # the client is gone already, which is the next event
            client.send(str(pid).encode())
        return None

    def _on_client_gone(self, client: socket.socket) -> None:
        self._selector.unregister(client)
        os.kill(self._pids[client], signal.SIGKILL)

    def _on_end(self, client: socket.socket, ended: int) -> None:
        self._selector.unregister(ended)
        os.close(ended)
        _, status = os.waitpid(self._pids.pop(client), 0)
        with contextlib.suppress(KeyError):
            self._selector.unregister(client)
        with contextlib.suppress(OSError):  # a client that was killed does not ask
            client.send(str(status).encode())
        client.close()

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            # A socket closed by its number alone would be closed again when Python frees it, and by then be another file.
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            elif key.fd != 0:
                os.close(key.fd)
        self._selector.close()


def become(request: dict[str, Any], descriptors: list[int]) -> Program:
    """Makes this process what its client is: descriptors, directory, environment, arguments. Returns its program."""
    _renumber(dict(zip(descriptors, request["descriptors"], strict=True)))
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    # Each process draws random numbers of its own, and looks for its own TMPDIR.
    random.seed()
    sys.modules["numpy"].random.seed()
    tempfile.tempdir = None
    sys.argv[:] = request["arguments"]
    return run_module if sys.argv[0] == "-m" else run_script


def _renumber(wanted: dict[int, int]) -> None:
    """Gives descriptors the numbers that they have in the client."""
    first_free = 1 + max([*wanted, *wanted.values()])
    moved = {first_free + index: theirs for index, theirs in enumerate(wanted.values())}
    for ours, number in zip(wanted, moved, strict=True):
        os.dup2(ours, number)
        os.close(ours)
    for number, theirs in moved.items():
        os.dup2(number, theirs)
        os.close(number)


def run_module() -> None:
    """Runs a module as `python -m` does."""
    _, module, *sys.argv[1:] = sys.argv
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def run_script() -> None:
    """Runs a script as Python does: in a module `__main__` of its own, which stays to the end of the process."""
    path = sys.argv[0]
    sys.path.insert(0, str(Path(path).resolve().parent))
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).update(__file__=path, __builtins__=__builtins__)
    exec(compile(Path(path).read_bytes(), path, "exec"), vars(main))


def main() -> Program:
    """Imports, then serves."""
    for module in IMPORTS:
        importlib.import_module(module)
    # Else each forked process looks for garbage in all modules as it ends, which copies their pages: a second of its life.
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(sys.argv[1] + ".new")
    listener.listen(64)
    os.rename(sys.argv[1] + ".new", sys.argv[1])  # whoever sees the name can connect
    return Server(listener).serve()


if __name__ == "__main__":
    main()()
