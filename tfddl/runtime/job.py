"""The state of this process's job: one object, which `init()` makes and `shutdown()` drops."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Job:
    """One generation of the job, from `init()` to `shutdown()`, as this rank sees it.

    Attributes:
        MPI: `mpi4py.MPI`.
        communicator: An mpi4py communicator of all ranks. tfddl makes other communicators from it.
        engine_communicators: The two communicators of the engine, for data and for control messages.
        hosts: For each rank the lowest rank of its host.
        by_hosts: Whether collectives may go by hosts: no rank has TFDDL_HIERARCHICAL_ALLREDUCE=0.
        instruction_sets: For each rank the largest instruction set of its processor: `runtime/processors.py`.
        cores: The cores of this rank's part of its host: `runtime/threads.py`.
        limits: Seconds after which a wait is reported, and seconds after which the wait fails.
        sets: The process sets by their numbers; 0 is `global_process_set`.
        communicators: The communicators of the process sets that this rank is in, by number.
        serials: The serial of each process set, by number.
        numbers: Gives each new process set its number. A number is used once, so that a function that was traced for a
            removed set cannot run on another set.
        timeline: The file of the running timeline, or None.
        lock: Held while a call changes the process sets.
    """

    MPI: Any
    communicator: Any
    engine_communicators: tuple[Any, ...]
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hosts: tuple[int, ...]
    by_hosts: bool
    instruction_sets: tuple[str, ...]
    cores: int
    limits: tuple[float, float]
    sets: dict[int, Any] = field(default_factory=dict)
    communicators: dict[int, Any] = field(default_factory=dict)
    serials: dict[int, int] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    timeline: Path | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)


@dataclass
class Process:
    """This process, before, in and after its jobs.

    Attributes:
        job: The running job, or None.
        forked: Whether this process was forked from a rank. It is no rank then.
        exit_code: The code with which the program ends, as far as it is known.
        exit_limits: Seconds of the exit watchdog, as `exit_watchdog.begin` takes them; empty before the first `init()`.
        unanswered: Whether peers did not answer the last `shutdown()`. Then MPI_Finalize might wait for ever.
        finalizes_mpi: Whether tfddl does what mpi4py would do at the end of Python.
        pinning_is_done: Whether `init()` has looked for a GPU of this process: `runtime/gpu.py`.
        threads: The number of threads that `init()` has put into the environment; empty if none: `runtime/threads.py`.
        survives: Whether this process goes on after the loss of other ranks. MPI cannot be finalized in order then.
        owners: How often each process set (by serial) has had an owner of each kind since `init()`: `ops/names.py`.
        serials: Gives each process set a serial. Sets of different jobs can have the same number, but not the same serial.
    """

    job: Job | None = None
    forked: bool = False
    exit_code: int = 0
    exit_limits: tuple[float, ...] = ()
    unanswered: bool = False
    finalizes_mpi: bool = False
    pinning_is_done: bool = False
    threads: str = ""
    survives: bool = False
    owners: Counter[tuple[int, str]] = field(default_factory=Counter)
    serials: Iterator[int] = field(default_factory=lambda: itertools.count(1))


process = Process()


def current(call: str = "") -> Job:
    """Returns the running job.

    Args:
        call: The function that needs the job, for the error.

    Raises:
        ValueError: tfddl is not initialized.
    """
    if process.job is None:
        received = f" Received: a call of hvd.{call}()" if call else ""
        where = (
            " in the function that tfddl.run starts"
            if "ipykernel" in sys.modules
            else " right after the imports"
        )
        raise ValueError(f"tfddl has not been initialized; use hvd.init(){where}.{received}")
    return process.job
