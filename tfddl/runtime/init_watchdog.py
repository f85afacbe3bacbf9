"""Bounds the wait for ranks that do not come to `init()`, and names them where they are on this host."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from tfddl.runtime import library

# Of Open MPI, of MPICH: rank, ranks, ranks on this host.
_PLACES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
)


@contextlib.contextmanager
def waiting(warning: float, limit: float, named: bool = True) -> Iterator[None]:
    """For `init()`: while it is open, a wait of `warning` seconds is reported, and one of `limit` seconds ends the process.

    MPI itself cannot be asked who is missing before all are there, so that each rank holds a socket without a
    file, whose name the others look up. Not if `named` is False: then not all of MPI's ranks are to come.
    """
    place = next((place for place in _PLACES if all(name in os.environ for name in place)), None)
    if place is None:  # no launcher that we know: most likely a job of one rank
        yield
        return
    rank, size, local_size = (int(os.environ[name]) for name in place)
    roll = f"tfddl-{os.environ['PMIX_NAMESPACE']}" if named and "PMIX_NAMESPACE" in os.environ else ""
    native = library.native()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as present:
        if roll:
            with contextlib.suppress(OSError):  # a child that this rank forked calls init() too
                present.bind(f"\0{roll}-{rank}")
        native.tfddl_wait_begins(b"hvd.init()", roll.encode(), rank, size, local_size, warning, limit)
        try:
            yield
        finally:
            native.tfddl_wait_ends()


@contextlib.contextmanager
def bounded(call: str, rank: int, size: int, limits: tuple[float, float]) -> Iterator[None]:
    """The same for another call that waits inside MPI, by ranks that are all known to have come to it."""
    native = library.native()
    native.tfddl_wait_begins(call.encode(), b"", rank, size, size, *limits)
    try:
        yield
    finally:
        native.tfddl_wait_ends()
