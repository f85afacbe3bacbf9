"""Init watchdog: bounds the wait in `init()` for missing ranks, and names those that are missing on this host."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from tfddl.runtime import library

# Environment variables of Open MPI and of MPICH: rank, size, local size.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
)


@contextlib.contextmanager
def waiting(warning: float, limit: float, named: bool = True) -> Iterator[None]:
    """A context for `init()`: it reports a wait of `warning` seconds, and ends the process after `limit` seconds.

    MPI cannot name missing ranks before all have come. So each rank binds an abstract socket, whose name contains the rank,
    and a waiting rank looks up the names of the others.

    Args:
        warning: Seconds.
        limit: Seconds.
        named: Whether to name missing ranks. False if some of MPI's ranks are not expected to call `init()`.
    """
    launcher = next((names for names in _LAUNCHERS if all(name in os.environ for name in names)), None)
    if launcher is None:  # an unknown launcher: most likely a job of one rank
        yield
        return
    rank, size, local_size = (int(os.environ[name]) for name in launcher)
    job = f"tfddl-{os.environ['PMIX_NAMESPACE']}" if named and "PMIX_NAMESPACE" in os.environ else ""
    native = library.native()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as present:
        if job:
            with contextlib.suppress(OSError):  # a forked child of this rank calls init() too
                present.bind(f"\0{job}-{rank}")
        native.tfddl_wait_begins(b"hvd.init()", job.encode(), rank, size, local_size, warning, limit)
        try:
            yield
        finally:
            native.tfddl_wait_ends()


@contextlib.contextmanager
def bounded(call: str, rank: int, size: int, limits: tuple[float, float]) -> Iterator[None]:
    """A context like `waiting` for another call that waits inside MPI, which all ranks are known to have made.

    Args:
        call: The call, for the message.
        rank: This rank.
        size: The number of ranks that wait.
        limits: The seconds until a warning and until the end of the process.
    """
    native = library.native()
    native.tfddl_wait_begins(call.encode(), b"", rank, size, size, *limits)
    try:
        yield
    finally:
        native.tfddl_wait_ends()
