"""When one rank fails, all end: an uncaught exception must not leave the others waiting."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from types import TracebackType
from typing import Any, NoReturn

from tfddl.runtime import fork, library

# MPI_Abort normally ends this process too; where it hangs, this does.
_ABORT_LIMIT = 2.0

# What fails on one rank raises on all within moments, and the first to end takes the others with it.
_CAUSE_LIMIT = 3.0

_world: Any = None


def install(world: Any) -> None:
    """Makes an uncaught exception end the whole job, after its traceback has been printed."""
    global _world
    if _world is None:
        previous = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            previous(kind, error, traceback)
            if not fork.is_child():
                _let_the_cause_speak()
                abort(None)

        sys.excepthook = hook
    _world = world


def _let_the_cause_speak() -> None:
    """Where the job has failed through others, one of them may still have to print why; it then ends the job."""
    reason = library.native().tfddl_failure().decode()
    if reason and not reason.startswith(f"rank {_world.rank}:"):
        time.sleep(_CAUSE_LIMIT)


def abort(reason: str | None, code: int = 1) -> NoReturn:
    """Prints the reason and ends every rank of the job with this exit code."""
    if reason:
        print(f"tfddl: {reason}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    timer = threading.Timer(_ABORT_LIMIT, os._exit, [code])
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # Python is too near its end for a new thread
        timer.start()
    library.native().tfddl_timeline_stop()  # which has what led here
    if _world is not None:
        _world.Abort(code)
    os._exit(code)
