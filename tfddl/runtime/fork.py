"""A process that a rank forks or spawns is no rank. Nothing that it does ends the job, which lives on in the parent.

The child knows rank and size, for example for a data worker. It cannot communicate: it lacks the engine's threads.
"""

from __future__ import annotations

import ctypes
import functools
import os

from tfddl.runtime import exit_code, library
from tfddl.runtime.job import process
from tfddl.runtime.watchdog.init_watchdog import JOB_VARIABLES

_RANK = "TFDDL_RANK_PROCESS"  # pid and launcher's variables of the rank, for the processes that it spawns
_RANKS = ("PMIX_RANK", "PMI_RANK")


@functools.cache
def watch() -> None:
    """Marks the children that this process forks from now on."""
    os.register_at_fork(after_in_child=_forked)


def mark_spawned() -> None:
    """Marks the processes that this one, a rank of several, starts from now on."""
    os.environ[_RANK] = f"{os.getpid()} {_place()}"


def refuse_spawned() -> None:
    """Refuses to join the job in a process that inherited the launcher's variables of a rank, which MPI knows already.

    MPI takes the process for the rank, and the rank crashes. A job that a rank starts has variables of its own.

    Raises:
        RuntimeError: This process was started by a rank.
    """
    rank, _, place = os.environ.get(_RANK, "").partition(" ")
    if rank and place and place == _place() and int(rank) != os.getpid():
        raise RuntimeError(
            "init needs a rank, but this process was started by one, and has the same place in MPI: call it in the rank "
            "alone (with multiprocessing below `if __name__ == '__main__':`), or start a job of its own by tfddlrun. "
            f"Received: process {os.getpid()}, started by rank process {rank}"
        )


def _place() -> str:
    if not any(name in os.environ for name in JOB_VARIABLES):
        return ""
    return " ".join(f"{name}={os.environ[name]}" for name in (*JOB_VARIABLES, *_RANKS) if name in os.environ)


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
    exit_code.observe()
    exit_code.after_traceback(_note_failure)


def _note_failure(_: BaseException) -> None:
    process.exit_code = 1
