"""A process that a rank forks is no rank. Nothing that it does ends the job, which lives on in the parent.

The child knows rank and size, for example for a data worker. It cannot communicate: it lacks the engine's threads.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from types import TracebackType

from tfddl.runtime import exit_code, library
from tfddl.runtime.job import process


@functools.cache
def watch() -> None:
    """Marks the children that this process forks from now on."""
    os.register_at_fork(after_in_child=_forked)


def is_child() -> bool:
    """Whether this process was forked from a rank."""
    return process.forked


def check(call: str) -> None:
    """Refuses a call that would communicate.

    Raises:
        RuntimeError: This process was forked from a rank.
    """
    if process.forked:
        raise RuntimeError(
            f"{call} needs a rank, but this process was forked from one, and the engine stayed with its parent: call it "
            f"there, or start the process before hvd.init(). Received: process {os.getpid()}, forked from {os.getppid()}"
        )


def _forked() -> None:
    if process.forked:
        return
    process.forked = True
    # The handler registered last runs first, when all of Python has ended. Without it mpi4py would finalize MPI here, which
    # waits for other ranks and destroys their shared memory.
    leave = ctypes.cast(library.native().tfddl_leave_forked, ctypes.c_void_p)
    ctypes.pythonapi.Py_AtExit(leave)
    _learn_exit_code()


def _learn_exit_code() -> None:
    exit_code.observe()
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        previous(kind, error, traceback)
        process.exit_code = 1

    sys.excepthook = hook
