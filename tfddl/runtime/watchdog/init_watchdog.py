"""Init watchdog: bounds the wait in `init()` for other ranks, and names those on this host that hold it up."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tfddl.runtime import library

# Environment variables of Open MPI and of MPICH: rank, size, local size.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
)
JOB_VARIABLES = ("TFDDL_JOB", "PMIX_NAMESPACE")
"""The names of jobs of tfddlrun and of Open MPI. Plain mpiexec of MPICH has none."""


@dataclass(frozen=True)
class Launched:
    """The numbers that the launcher gave to this process, which are known before MPI is.

    Attributes:
        rank: The rank in `MPI.COMM_WORLD`.
        size: The number of ranks.
        local_size: The number of ranks on this host.
        job: The same text on all ranks of this job, and on no other job of this host; empty if there is none.
    """

    rank: int
    size: int
    local_size: int
    job: str


def launched() -> Launched | None:
    """The numbers from the launcher's environment variables. None for an unknown launcher: most likely there is one rank."""
    names = next((names for names in _LAUNCHERS if all(name in os.environ for name in names)), None)
    if names is None:
        return None
    # tfddlrun's own, and that of Open MPI, which also tells spawned ranks from those that spawned them.
    job = "/".join(os.environ[name] for name in JOB_VARIABLES if name in os.environ)
    rank, size, local_size = (int(os.environ[name]) for name in names)
    return Launched(rank, size, local_size, job)


@contextlib.contextmanager
def waiting(warning: float, limit: float, named: bool = True) -> Iterator[Callable[[], None]]:
    """A context for `init()`: it reports a wait of `warning` seconds, and ends the process after `limit` seconds.

    Args:
        warning: Seconds.
        limit: Seconds.
        named: Whether to name missing ranks. False if some of MPI's ranks are not expected to call `init()`.

    Yields:
        A function to call before each call that waits for other ranks. A rank that makes fewer calls than the others holds
        them up.
    """
    numbers = launched()
    if numbers is None:
        yield lambda: None
        return
    presence = f"tfddl/{numbers.job}/init" if named and numbers.job else ""
    native = library.native()
    native.tfddl_wait_begins(
        b"hvd.init()", presence.encode(), numbers.rank, numbers.size, numbers.local_size, warning, limit
    )
    try:
        yield native.tfddl_wait_step
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
