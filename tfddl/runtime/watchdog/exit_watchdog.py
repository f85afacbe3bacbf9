"""Exit watchdog: names the ranks whose exit the others wait for, and bounds that wait."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import time

from tfddl.runtime import library
from tfddl.runtime.watchdog import init_watchdog


def begin(warning: float, limit: float, exit_limit: float) -> None:
    """The exit handlers of this rank have begun.

    Once all Python has ended, this rank waits for the others. It reports that wait every `warning` seconds. It ends the
    process after `exit_limit` seconds, and `limit` seconds after the exit of all ranks has begun.

    Args:
        warning: Seconds.
        limit: Seconds.
        exit_limit: Seconds.
    """
    numbers = init_watchdog.launched()
    if numbers is None or numbers.size == 1:
        return
    native = library.native()
    native.tfddl_exit_begins(
        _presence(numbers).encode(),
        numbers.rank,
        numbers.size,
        numbers.local_size,
        warning,
        limit,
        exit_limit,
    )
    _watch()


def await_handlers(rank: int, limit: float) -> None:
    """Waits while the exit handlers of another rank run. Returns at once for a rank of another host.

    Args:
        rank: The other rank, by its number in `MPI.COMM_WORLD`.
        limit: Seconds.
    """
    numbers = init_watchdog.launched()
    if numbers is None or not numbers.job:
        return
    end = time.monotonic() + limit
    while _in_handlers(f"@{_presence(numbers)}/{rank}/") and time.monotonic() < end:
        time.sleep(0.05)


def _in_handlers(start: str) -> bool:
    """Whether a rank, by the start of its socket's name, is at the first step of its exit."""
    with contextlib.suppress(OSError), open("/proc/net/unix", errors="replace") as table:
        return any(start in line and line.rstrip().endswith("/0") for line in table)
    return False


def _presence(numbers: init_watchdog.Launched) -> str:
    return f"tfddl/{numbers.job}/exit" if numbers.job else ""


@functools.cache
def _watch() -> None:
    # The function registered last runs first, so this one runs before mpi4py finalizes MPI.
    ctypes.pythonapi.Py_AtExit(ctypes.cast(library.native().tfddl_exit_handlers_ended, ctypes.c_void_p))
