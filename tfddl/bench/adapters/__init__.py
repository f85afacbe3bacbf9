"""What is measured: one module for each, named in `ADAPTERS`.

A module has `ways(process)`. It joins the job, and returns a function from a `Case` to a `Way`, or to None where
this adapter has no such operation.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path

from tfddl.bench.case import Case


@dataclasses.dataclass(frozen=True)
class Process:
    """A process in its job.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes, all on this host.
        directory: An empty one that the job has to itself.
        ports: As many free ports of this host as there are processes.
    """

    rank: int
    size: int
    directory: Path
    ports: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to do what a case asks for.

    Attributes:
        call: Does it once; returns when the result is there.
        wrong: Counts the wrong elements of what the last call gave.
        before: What comes before each call and is no part of its time.
    """

    call: Callable[[], object]
    wrong: Callable[[], int]
    before: Callable[[], object] = lambda: None


Ways = Callable[[Case], Way | None]


@dataclasses.dataclass(frozen=True)
class Adapter:
    """What the driver has to know before it starts one.

    Attributes:
        title: In tables.
        module: Where its `ways` is.
        packages: What has to be installed, as imported.
        operations: What it can do.
        restless: Whether threads of it work between its turns too, so that its ranks have to be stopped meanwhile.
    """

    title: str
    module: str
    packages: tuple[str, ...]
    operations: tuple[str, ...]
    restless: bool = False

    def missing(self) -> list[str]:
        """Which of its packages are not installed."""
        return [name for name in self.packages if importlib.util.find_spec(name) is None]


_HERE = "tfddl.bench.adapters."
_TENSORFLOW = ("tensorflow", "mpi4py")
_COLLECTIVES = ("allreduce", "broadcast", "allgather", "reducescatter", "alltoall")
_ALL = (*_COLLECTIVES, "gradients")
_TRAINS = (*_ALL, "training")

OWN: dict[str, Adapter] = {
    "tfddl": Adapter("tfddl", _HERE + "tfddl", _TENSORFLOW, _TRAINS),
    "nothing": Adapter("op that does nothing", _HERE + "nothing", _TENSORFLOW, _TRAINS),
    "chained": Adapter("tfddl, twice in a row", _HERE + "chained", _TENSORFLOW, ("allreduce",)),
    "copy": Adapter("copy on all ranks", _HERE + "copy", (), ("allreduce", "gradients", "training")),
    "futex": Adapter("futex ping-pong", _HERE + "futex", (), ("allreduce",)),
    "in step": Adapter("ranks meet, nothing sent", _HERE + "in_step", _TENSORFLOW, ("training",)),
    "copy after a step": Adapter("copy after a step", _HERE + "copy_after", _TENSORFLOW, ("training",)),
    "alone": Adapter("one process alone", _HERE + "alone", _TENSORFLOW, ("training",)),
}
"""tfddl, and what it is held against."""

PEERS: dict[str, Adapter] = {
    "mpi4py": Adapter("mpi4py", _HERE + "mpi", ("mpi4py",), _ALL),
    "mpi4py-fused": Adapter("mpi4py, one buffer", _HERE + "mpi_fused", ("mpi4py",), ("gradients",)),
    "horovod": Adapter("Horovod", _HERE + "horovod", ("horovod", "tensorflow"), _TRAINS, restless=True),
    "gloo": Adapter(
        "torch gloo", _HERE + "gloo", ("torch",), ("allreduce", "broadcast", "allgather", "gradients")
    ),
    "mwms": Adapter(
        "MultiWorkerMirroredStrategy",
        _HERE + "mwms",
        ("tensorflow",),
        ("allreduce", "allgather", "gradients", "training"),
    ),
}
"""Others that do the same."""
