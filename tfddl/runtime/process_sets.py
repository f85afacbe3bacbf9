"""Process sets: groups of ranks that run collectives among themselves."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from tfddl.runtime import fork, library, roll_call
from tfddl.runtime.proposal import Proposal, agreed_groups
from tfddl.runtime.ranks import is_communicator, numbers

_INIT = "init"
_REMOVAL_LIMIT = 30.0  # seconds; all ranks have agreed by then


class ProcessSet:
    """A group of ranks that run collectives among themselves: `process_set=` of every collective.

    It can be used once it is part of the job, by `init(process_sets=[...])` or `add_process_set(...)`. A rank may be in
    several sets; each has an engine of its own, so that they do not wait for each other.

        first, second = hvd.ProcessSet([0, 1]), hvd.ProcessSet([2, 3])
        hvd.init(process_sets=[first, second])
        mine = first if first.included() else second
        hvd.allreduce(x, process_set=mine)

    Args:
        ranks_or_comm: Ranks of the job; or an mpi4py communicator of processes of the job. Several disjoint
            communicators, of which each process has one, as `Split` makes them, become as many sets: each process'
            object is the one that the process is in. On a process that has `MPI.COMM_NULL` it is none.

    Attributes:
        process_set_id: The number of the set in the job, equal on all ranks; None while it is not part of one.
        ranks: The members, sorted. Of a communicator None until it is part of the job.
        mpi_comm: The communicator, or None.

    Raises:
        ValueError: `ranks_or_comm` is neither, or no rank, or names one twice.
    """

    def __init__(self, ranks_or_comm: Any) -> None:
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = None
        self.mpi_comm: Any = None
        if is_communicator(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
            return
        self.ranks = numbers(ranks_or_comm)
        if self.ranks is None:
            raise ValueError(
                "ProcessSet takes the ranks of its members, ints from 0 that differ, or an mpi4py communicator. "
                f"Received: {ranks_or_comm!r}"
            )

    def size(self) -> int | None:
        """The number of its members; None while it is not part of a job."""
        return len(self.ranks or ()) if self._registered() else None

    def rank(self) -> int | None:
        """This process's number among the members; None while the set is not part of a job.

        Raises:
            ValueError: This process is not a member.
        """
        job = _job
        if job is None or not self._registered():
            return None
        if job.rank not in (self.ranks or ()):
            raise ValueError(f"rank {job.rank} is not a member of {self}")
        return (self.ranks or []).index(job.rank)

    def included(self) -> bool | None:
        """Whether this process is a member; None while the set is not part of a job."""
        job = _job
        return None if job is None or not self._registered() else job.rank in (self.ranks or ())

    def _registered(self) -> bool:
        number = self.process_set_id
        return _job is not None and number is not None and _job.sets.get(number) is self

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__

    def __reduce__(self) -> Any:
        return _with_ranks, (None if self is global_process_set else self.ranks,)

    def __copy__(self) -> ProcessSet:
        return self

    def __deepcopy__(self, memo: Any) -> ProcessSet:
        return self


global_process_set = ProcessSet([])
"""All ranks of the job: number 0. Its `ranks` are known after `init()`."""
global_process_set.process_set_id, global_process_set.ranks = 0, None


@dataclass
class _Job:
    """What the sets of one generation of the job hang on."""

    MPI: Any
    communicator: Any  # of all ranks, for making others
    rank: int
    size: int
    limits: tuple[float, float]
    sets: dict[int, ProcessSet] = field(default_factory=dict)
    communicators: dict[int, Any] = field(default_factory=dict)
    serials: dict[int, int] = field(default_factory=dict)


_serials = itertools.count(1)
_lock = threading.RLock()  # of calls that change the sets
_job: _Job | None = None


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a process set part of the job. All ranks call it, members or not, with equal ranks and in one order.

    Args:
        process_set: A `ProcessSet`, or ranks.

    Returns:
        The `ProcessSet`, ready for use.

    Raises:
        ValueError: On all ranks: they give different ranks, or one that is not in the job, or there is a set of these
            ranks already. Or tfddl is not initialized.
        RuntimeError: The job has failed meanwhile, or this process was forked from a rank.
    """
    job = _require("add_process_set")
    objection = ""
    try:
        made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    except ValueError as error:
        made, objection = ProcessSet([]), str(error)
    with _lock:
        return _add(job, "add_process_set", [made], objection)[0]


def remove_process_set(process_set: ProcessSet) -> bool:
    """Takes a process set out of the job. All ranks call it, members or not, in one order.

    Args:
        process_set: One that `init` or `add_process_set` has made part of the job.

    Returns:
        False, and nothing happens, for the global set and one that is not part of the job; else True. The number of
        the set may be given to another one then.

    Raises:
        TypeError: It is no `ProcessSet`.
        ValueError: On all ranks: they give different sets, or a collective of this one is still in flight.
        RuntimeError: The job has failed meanwhile, or this process was forked from a rank.
    """
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"remove_process_set takes a ProcessSet. Received: {process_set!r}")
    if process_set is global_process_set or not process_set._registered():
        return False
    job = _require("remove_process_set")
    with _lock:
        number, native = process_set.process_set_id, library.native()
        assert number is not None
        busy = native.tfddl_set_in_flight(number).decode()
        objection = f"{busy} still in flight: wait for it first" if busy else ""
        mine = Proposal("remove_process_set", [("ranks", process_set.ranks or [])], objection)
        agreed_groups(mine, _gather(job, mine))
        if native.tfddl_remove_set(number, min(_REMOVAL_LIMIT, job.limits[1])) != 0:
            raise RuntimeError(f"remove_process_set: {native.tfddl_last_error().decode()}")
        communicator = job.communicators.pop(number, None)
        if communicator is not None:
            communicator.Free()
        del job.sets[number]
        process_set.process_set_id = None
    return True


def start(MPI: Any, communicator: Any, limits: tuple[float, float]) -> None:
    """A job begins, with the global set alone.

    Args:
        MPI: `mpi4py.MPI`.
        communicator: Of all its ranks; nobody else communicates over it.
        limits: Seconds after which a wait is reported, and ends.
    """
    global _job
    _job = _Job(MPI, communicator, communicator.rank, communicator.size, limits, {0: global_process_set})
    global_process_set.ranks = list(range(communicator.size))


def add_static(given: Any) -> None:
    """Adds those that `init()` was given; the ranks compare them.

    Raises:
        ValueError: On all ranks: they are no list of `ProcessSet`, differ by rank, or cannot be added.
    """
    wrong = ""
    sets = [] if given is None or isinstance(given, str) else given
    if isinstance(given, str) and given != "dynamic":
        wrong = f"process_sets is a list of ProcessSet, or 'dynamic', not {given!r}"
    elif not isinstance(sets, (list, tuple)) or not all(isinstance(one, ProcessSet) for one in sets):
        sets, wrong = [], f"process_sets is a list of ProcessSet, not {given!r}"
    with _lock:
        _add(_require(_INIT), _INIT, [one for one in sets if one is not global_process_set], wrong)


def stop(free: bool) -> None:
    """The job has ended; `free` says whether communicators may be freed."""
    global _job
    with _lock:
        if _job is None:
            return
        job, _job = _job, None
        for process_set in job.sets.values():
            if process_set is not global_process_set:
                process_set.process_set_id = None
        global_process_set.ranks = None
        for communicator in job.communicators.values() if free else ():
            communicator.Free()


def check_type(process_set: Any) -> ProcessSet:
    """Returns `process_set` if it is one.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            "process_set takes a ProcessSet, such as hvd.global_process_set or what hvd.add_process_set returns. "
            f"Received: process_set={process_set!r}"
        )
    return process_set


def id_of(process_set: Any, kind: str) -> int:
    """The number of a set that `kind` is called with.

    Raises:
        TypeError: It is no `ProcessSet`.
        ValueError: It is not part of the job.
    """
    check_type(process_set)
    if process_set is not global_process_set and not process_set._registered():
        raise ValueError(
            f"{kind} needs a process set that is part of the job: hvd.init(process_sets=[...]) and "
            f"hvd.add_process_set(...) make it so, hvd.remove_process_set and hvd.shutdown end it. Received: {process_set}"
        )
    return process_set.process_set_id or 0


def by_id(number: int) -> ProcessSet:
    """The set of this number.

    Raises:
        ValueError: There is none.
    """
    job = _current()
    if number not in job.sets:
        raise ValueError(f"There is no process set {number} in the job. Received: {sorted(job.sets)}")
    return job.sets[number]


def members(process_set: ProcessSet) -> list[int]:
    """The ranks of a set that is part of the job.

    Raises:
        ValueError: tfddl is not initialized.
    """
    _current()
    return process_set.ranks or []


def serial(number: int) -> int:
    """Tells apart the sets that have had this number one after the other; 0 for the global one."""
    return _job.serials.get(number, 0) if _job is not None else 0


def place_in(process_set: ProcessSet) -> int:
    """This process's number in the set; 0 where it is not a member, whose collectives raise when they run."""
    return (process_set.rank() or 0) if process_set.included() else 0


def _require(call: str) -> _Job:
    fork.check(call)
    return _current()


def _current() -> _Job:
    if _job is None:
        raise ValueError("tfddl has not been initialized; use hvd.init().")
    return _job


def _add(job: _Job, call: str, process_sets: list[ProcessSet], objection: str) -> list[ProcessSet]:
    slots = []
    for process_set in process_sets:
        ranks, wrong = _ranks_in(job, process_set)
        objection = objection or wrong
        slots.append(("ranks" if process_set.mpi_comm is None else "comm", ranks))
    mine = Proposal(call, slots, objection)
    groups = agreed_groups(mine, _gather(job, mine))
    _refuse_known(job, [ranks for slot in groups for ranks in slot])
    for slot, process_set in enumerate(process_sets):
        for ranks in groups[slot]:
            own = process_set if slots[slot][1] == ranks else ProcessSet(ranks)
            own.ranks = ranks
            _register(job, call, own)
    return process_sets


def _ranks_in(job: _Job, process_set: ProcessSet) -> tuple[list[int], str]:
    """The members by their rank in the job, and what is wrong with them."""
    if process_set._registered():
        return process_set.ranks or [], f"it is part of the job already: {process_set}"
    if process_set.mpi_comm is None:
        ranks = process_set.ranks or []
        wrong = [rank for rank in ranks if rank >= job.size]
        return (
            ranks,
            f"the ranks of the job are 0 to {job.size - 1}" if wrong else "" if ranks else "it has no ranks",
        )
    if process_set.mpi_comm == job.MPI.COMM_NULL:
        return [], ""
    group, all_ranks = process_set.mpi_comm.Get_group(), job.communicator.Get_group()
    ranks = sorted(job.MPI.Group.Translate_ranks(group, None, all_ranks))
    group.Free()
    all_ranks.Free()
    if job.MPI.UNDEFINED in ranks:
        return [], "the communicator has processes that are not in the job"
    return ranks, ""


def _refuse_known(job: _Job, groups: list[list[int]]) -> None:
    for index, ranks in enumerate(groups):
        for number, known in job.sets.items():
            if known.ranks == ranks:
                raise ValueError(
                    f"The job has a process set of these ranks already, number {number}. Received: ranks {ranks}"
                )
        if ranks in groups[:index]:
            raise ValueError(f"Each process set must have ranks of its own. Received: ranks {ranks} twice")


def _register(job: _Job, call: str, process_set: ProcessSet) -> None:
    """Makes the engine of an agreed set on its members; all or none have it in the end."""
    ranks, native = process_set.ranks or [], library.native()
    number = next(number for number in range(1, len(job.sets) + 1) if number not in job.sets)
    address, failure, communicator = None, "", None
    try:
        with _bounded(job, call):
            if job.rank in ranks:
                communicator = _communicator_of(job, ranks, number)
                address = job.MPI._addressof(communicator)
            if native.tfddl_add_set(number, (ctypes.c_int * len(ranks))(*ranks), len(ranks), address) != 0:
                failure = native.tfddl_last_error().decode()
    except job.MPI.Exception as error:
        failure = str(error)
    made = Proposal(call, [("ranks", ranks)], failure)
    try:
        agreed_groups(made, _gather(job, made))
    except ValueError:
        native.tfddl_drop_set(number)  # its communicator stays: a message may be under way
        raise
    job.sets[number], job.serials[number] = process_set, next(_serials)
    process_set.process_set_id = number
    if communicator is not None:
        job.communicators[number] = communicator


def _bounded(job: _Job, call: str) -> AbstractContextManager[None]:
    if call == _INIT:  # which has bounded its wait itself
        return nullcontext()
    return roll_call.bounded(f"hvd.{call}()", job.rank, job.size, job.limits)


def _communicator_of(job: _Job, ranks: list[int], number: int) -> Any:
    """Collective over the members only."""
    everybody = job.communicator.Get_group()
    group = everybody.Incl(ranks)
    try:
        return job.communicator.Create_group(group, number)
    finally:
        group.Free()
        everybody.Free()


def _gather(job: _Job, mine: Proposal) -> list[Proposal]:
    """Every rank's proposal, through the engine of the global set: a rank that does not come is named.

    `init()` waits for all ranks inside MPI anyway, and the engine has run nothing when it returns.
    """
    if mine.call == _INIT:
        return list(job.communicator.allgather(mine))
    native = library.native()
    text = native.tfddl_gather(b"process sets", mine.encode())
    if text is None:
        raise RuntimeError(f"{mine.call}: {native.tfddl_last_error().decode()}")
    return [Proposal.decode(line) for line in text.decode().splitlines()]


def _with_ranks(ranks: list[int] | None) -> ProcessSet:
    """For pickle: the set of these ranks in this job, or one that is still to be added."""
    if ranks is None:
        return global_process_set
    known = [one for one in (_job.sets.values() if _job else ()) if one.ranks == ranks]
    return known[0] if known else ProcessSet(ranks)
