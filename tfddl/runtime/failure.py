"""When one rank fails, all end: an uncaught exception must not leave the others waiting."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

from tfddl.runtime import exit_code, fork, library
from tfddl.runtime.job import process
from tfddl.runtime.watchdog import exit_watchdog

# MPI_Abort normally ends this process too. If it hangs, os._exit ends the process after these seconds.
_ABORT_LIMIT = 2.0

# A failure of one rank raises on all ranks within moments. The first rank to end takes the others with it, so the
# ranks that are not the cause wait: the cause may still have to print its traceback.
_CAUSE_LIMIT = 3.0
_LEFT = re.compile(r"rank (\d+) has shut down tfddl")  # in the error that a collective raises on the others

# A rank that has left knows its exit code when its exit handlers have ended, and then ends the job with that code.
_HANDLERS_LIMIT = 30.0


@functools.cache
def install() -> None:
    """Makes an uncaught exception end the whole job, after its traceback has been printed."""
    exit_code.after_traceback(_end_all)


def _end_all(error: BaseException) -> None:
    if not fork.is_child():
        reason = f"{type(error).__name__}: {error}"
        library.native().tfddl_record_failure(reason.encode(errors="replace"))
        _let_the_cause_print(error)
        abort(None)


@contextlib.contextmanager
def during_init() -> Iterator[None]:
    """A context for `init()`: if SystemExit ends the program there, the job ends too.

    The other ranks wait in `init()`, and MPI_Finalize would wait for them.
    """
    try:
        yield
    except SystemExit as error:
        atexit.register(_end_in_init, exit_code.status(error.code))
        raise
    atexit.unregister(_end_in_init)


def _end_in_init(code: int) -> None:
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is not None and MPI.Is_initialized() and MPI.COMM_WORLD.size > 1 and not fork.is_child():
        abort(
            f"rank {MPI.COMM_WORLD.rank} called sys.exit({code}) in hvd.init(), where the others wait for it; "
            "call sys.exit before hvd.init() on every rank, or on none",
            code or 1,
        )


def abort(reason: str | None, code: int = 1) -> NoReturn:
    """Prints the reason and ends every rank of the job with this exit code."""
    # A stream may be None, closed, on a full disk, or an object without flush().
    with contextlib.suppress(Exception):
        if reason:
            print(f"tfddl: {reason}", file=sys.stderr)
        sys.stderr.flush()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    timer = threading.Timer(_ABORT_LIMIT, os._exit, [code])
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # Python is too near its end for a new thread
        timer.start()
    library.native().tfddl_timeline_stop()  # writes the last events, which show the cause
    world = library.mpi().COMM_WORLD
    if world.size > 1:
        world.Abort(code)
    os._exit(code)


def _let_the_cause_print(error: BaseException) -> None:
    """Waits if the job has failed through another rank, which prints the reason and ends the job."""
    reason = library.native().tfddl_failure().decode()
    own = process.job.rank if process.job else library.mpi().COMM_WORLD.rank
    failed_elsewhere = reason and not reason.startswith(f"rank {own}:")
    left = _LEFT.search(str(error))
    if left:
        exit_watchdog.await_handlers(int(left[1]), _HANDLERS_LIMIT)
    if failed_elsewhere or left:
        time.sleep(_CAUSE_LIMIT)
