"""A process that a rank forks is no rank: whatever it does, the job lives on in the parent.

It knows rank and size, which a data worker may want, and cannot communicate: the threads that do are not in it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from types import TracebackType

from tfddl.runtime import exit_code, library

_child = False
_watched = False


def watch() -> None:
    """Notes from now on in which process we are."""
    global _watched
    if not _watched:
        _watched = True
        os.register_at_fork(after_in_child=_forked)


def is_child() -> bool:
    """Whether this process was forked from a rank."""
    return _child


def check(call: str) -> None:
    """Refuses a call that would communicate.

    Raises:
        RuntimeError: This process was forked from a rank.
    """
    if _child:
        raise RuntimeError(
            f"{call} needs a rank, but this process was forked from one, and the engine stayed with its parent: call it "
            f"there, or start the process before hvd.init(). Received: process {os.getpid()}, forked from {os.getppid()}"
        )


def _forked() -> None:
    global _child
    if _child:
        return
    _child = True
    # The last one registered runs first, when all of Python has ended. Without it mpi4py would finalize MPI here, which
    # waits for others, and takes their memory apart.
    leave = ctypes.cast(library.native().tfddl_leave_forked, ctypes.c_void_p)
    ctypes.pythonapi.Py_AtExit(leave)
    _learn_exit_code()


def _learn_exit_code() -> None:
    exit_code.observe()
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        previous(kind, error, traceback)
        exit_code.note(1)

    sys.excepthook = hook
