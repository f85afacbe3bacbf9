"""Exit watchdog: names the ranks whose exit the others wait for, and bounds that wait."""

from __future__ import annotations

import ctypes
import functools

from tfddl.runtime import init_watchdog, library


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
    presence = f"tfddl/{numbers.job}/exit" if numbers.job else ""
    native.tfddl_exit_begins(
        presence.encode(), numbers.rank, numbers.size, numbers.local_size, warning, limit, exit_limit
    )
    _watch()


@functools.cache
def _watch() -> None:
    # The function registered last runs first, so this one runs before mpi4py finalizes MPI.
    ctypes.pythonapi.Py_AtExit(ctypes.cast(library.native().tfddl_exit_handlers_ended, ctypes.c_void_p))
