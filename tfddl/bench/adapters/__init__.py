"""The adapters: one module for each library or baseline, listed in `OWN` and `PEERS`.

A module has a function `ways(process)`, which joins the job. It returns a function from a `Case` to a `Way`, or to None if
the adapter lacks the operation.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path

from tfddl.bench.case import Case


@dataclasses.dataclass(frozen=True)
class Process:
    """A process of the job of one adapter.

    Attributes:
        rank: The rank of this process.
        size: Number of processes.
        directory: An empty directory for this job, for all processes on the host of `tfddl bench`.
        addresses: For each process a free port, as `host:port`.
    """

    rank: int
    size: int
    directory: Path
    addresses: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to run a case.

    Attributes:
        call: Runs the case once, and returns when the result is there.
        wrong: Counts the wrong elements in the result of the last call.
        before: Runs before each call. Its time does not count.
    """

    call: Callable[[], object]
    wrong: Callable[[], int]
    before: Callable[[], object] = lambda: None


Ways = Callable[[Case], Way | None]


@dataclasses.dataclass(frozen=True)
class Adapter:
    """A library or baseline to measure.

    Attributes:
        title: The title in tables.
        module: The module with `ways`.
        packages: Required packages, by the names of their imports.
        operations: Supported operations.
        hosts: "one" or "several" for a baseline that has a meaning only there, else "any".
        restless: Whether its threads also work between its blocks, so that its workers must be stopped meanwhile.
    """

    title: str
    module: str
    packages: tuple[str, ...]
    operations: tuple[str, ...]
    hosts: str = "any"
    restless: bool = False

    def missing(self) -> list[str]:
        """The required packages that are not installed."""
        return [name for name in self.packages if importlib.util.find_spec(name) is None]


_HERE = "tfddl.bench.adapters."
_TENSORFLOW = ("tensorflow", "mpi4py")
_COLLECTIVES = ("allreduce", "broadcast", "allgather", "reducescatter", "alltoall")
_ALL = (*_COLLECTIVES, "chain", "gradients")
_TRAINS = (*_ALL, "training")

OWN: dict[str, Adapter] = {
    "tfddl": Adapter("tfddl", _HERE + "tfddl", _TENSORFLOW, _TRAINS),
    "nothing": Adapter("op that does nothing", _HERE + "nothing", _TENSORFLOW, _TRAINS),
    "chained": Adapter("tfddl, twice in a row", _HERE + "chained", _TENSORFLOW, ("allreduce",), "one"),
    "copy": Adapter("copy on all ranks", _HERE + "copy", (), ("allreduce", "gradients", "training"), "one"),
    "futex": Adapter("futex ping-pong", _HERE + "futex", (), ("allreduce",), "one"),
    "tcp": Adapter("TCP between hosts", _HERE + "tcp", (), (*_COLLECTIVES, "gradients"), "several"),
    "in step": Adapter("ranks meet, nothing sent", _HERE + "in_step", _TENSORFLOW, ("training",)),
    "copy after a step": Adapter(
        "copy after a step", _HERE + "copy_after", _TENSORFLOW, ("training",), "one"
    ),
    "tcp after a step": Adapter(
        "a step, then TCP between hosts", _HERE + "tcp_after", _TENSORFLOW, ("training",), "several"
    ),
    "alone": Adapter("one process alone", _HERE + "alone", _TENSORFLOW, ("training",)),
}
"""tfddl and its baselines."""

PEERS: dict[str, Adapter] = {
    "mpi4py": Adapter("mpi4py", _HERE + "mpi", ("mpi4py",), _ALL),
    "mpi4py-fused": Adapter("mpi4py, one buffer", _HERE + "mpi_fused", ("mpi4py",), ("gradients",)),
    "horovod": Adapter("Horovod", _HERE + "horovod", ("horovod", "tensorflow"), _TRAINS, restless=True),
    "gloo": Adapter(
        "torch gloo",
        _HERE + "gloo",
        ("torch",),
        ("allreduce", "chain", "broadcast", "allgather", "gradients"),
    ),
    "mwms": Adapter(
        "MultiWorkerMirroredStrategy",
        _HERE + "mwms",
        ("tensorflow",),
        ("allreduce", "chain", "allgather", "gradients", "training"),
    ),
}
"""Other libraries."""
