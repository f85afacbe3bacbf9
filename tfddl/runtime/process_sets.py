"""Process sets: groups of ranks that run collectives among themselves."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tfddl.runtime import rank_queries
from tfddl.runtime.job import Job, current, process
from tfddl.runtime.job_communicator import is_communicator, numbers


class ProcessSet:
    """A group of ranks that run collectives among themselves: `process_set=` of every collective.

    A set must be part of the job before use: `init(process_sets=[...])` or `add_process_set(...)`. A rank may be in
    several sets. Each set has its own engine, so sets do not wait for each other.

        first, second = hvd.ProcessSet([0, 1]), hvd.ProcessSet([2, 3])
        hvd.init(process_sets=[first, second])
        mine = first if first.included() else second
        hvd.allreduce(x, process_set=mine)

    Args:
        ranks_or_comm: Ranks of the job, or an mpi4py communicator of processes of the job. Disjoint communicators, as
            `Split` makes them, become one set each, and the object stands for the set of its process. With
            `MPI.COMM_NULL` it stands for none.

    Attributes:
        process_set_id: The number of the set, equal on all ranks. None while the set is not part of a job.
        ranks: The members, sorted. None for a communicator until the set is part of a job.
        mpi_comm: The communicator, or None. Of `global_process_set` the communicator that `init(comm=...)` was given.

    Raises:
        ValueError: `ranks_or_comm` is no communicator and no list of ranks, or names a rank twice.
    """

    def __init__(self, ranks_or_comm: Any) -> None:
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = None
        self.mpi_comm: Any = None
        self._family: list[ProcessSet] = []
        """The sets that one call has added, of all ranks' disjoint communicators. They are removed together."""
        if is_communicator(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
            return
        self.ranks = numbers(ranks_or_comm)
        if self.ranks is None:
            raise ValueError(
                "ProcessSet takes the ranks of its members, or an mpi4py communicator: pass ints from 0, each once. "
                f"Received: {ranks_or_comm!r}"
            )

    def size(self) -> int | None:
        """The number of members. None while the set is not part of a job."""
        rank_queries.note_program("size", "ProcessSet.size()")
        return len(self.ranks or ()) if self.registered() else None

    def rank(self) -> int | None:
        """The rank of this process within the set. None while the set is not part of a job.

        Raises:
            ValueError: This process is not a member.
        """
        rank_queries.note_program("rank", "ProcessSet.rank()")
        job = process.job
        if job is None or not self.registered():
            return None
        if job.rank not in (self.ranks or ()):
            raise ValueError(f"rank {job.rank} is not a member of {self}: ask included() first")
        return (self.ranks or []).index(job.rank)

    def included(self) -> bool | None:
        """Whether this process is a member. None while the set is not part of a job."""
        job = process.job
        return None if job is None or not self.registered() else job.rank in (self.ranks or ())

    def registered(self) -> bool:
        """Whether the set is part of the job."""
        job, number = process.job, self.process_set_id
        return job is not None and number is not None and job.sets.get(number) is self

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__

    def __reduce__(self) -> Any:
        return of_ranks, (None if self is global_process_set else self.ranks,)

    def __copy__(self) -> ProcessSet:
        return self

    def __deepcopy__(self, memo: Any) -> ProcessSet:
        return self


global_process_set = ProcessSet([])
"""All ranks of the job. Its number is 0, and its `ranks` are known after `init()`."""
global_process_set.process_set_id, global_process_set.ranks = 0, None


def start(job: Job, comm: Any) -> None:
    """Makes `global_process_set` the only set of a new job; `comm` is the argument of `init()`."""
    job.sets[0] = global_process_set
    global_process_set.mpi_comm = comm if is_communicator(comm) else None
    global_process_set.ranks = list(range(job.size))


def stop(job: Job, free: bool) -> None:
    """Takes all sets out of a job that has ended. `free` says whether their communicators may be freed."""
    with job.lock:
        for process_set in job.sets.values():
            if process_set is not global_process_set:
                process_set.process_set_id = None
        global_process_set.ranks = global_process_set.mpi_comm = None
        for communicator in job.communicators.values() if free else ():
            communicator.Free()


def check_type(process_set: Any) -> ProcessSet:
    """Returns `process_set`.

    Raises:
        TypeError: `process_set` is no `ProcessSet`.
    """
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            "process_set takes a ProcessSet: pass hvd.global_process_set, or what hvd.add_process_set returns. "
            f"Received: process_set={process_set!r}"
        )
    return process_set


def id_of(process_set: Any, kind: str) -> int:
    """The number of the process set that was given to the collective `kind`.

    Raises:
        TypeError: `process_set` is no `ProcessSet`.
        ValueError: `process_set` is not part of the job.
    """
    check_type(process_set)
    if process_set is not global_process_set and not process_set.registered():
        raise ValueError(
            f"{kind} needs a process set that is part of the job: pass it to hvd.init(process_sets=[...]) or "
            f"hvd.add_process_set(...); hvd.remove_process_set and hvd.shutdown end it. Received: {process_set}"
        )
    return process_set.process_set_id or 0


def by_id(number: int) -> ProcessSet:
    """The process set with a number.

    Raises:
        ValueError: The job has no such process set.
    """
    sets: dict[int, ProcessSet] = current().sets
    if number not in sets:
        raise ValueError(
            f"There is no process set {number} in the job: choose from {sorted(sets)}. Received: {number}"
        )
    return sets[number]


def members(process_set: ProcessSet, call: str = "") -> list[int]:
    """The ranks of a set that is part of the job.

    Raises:
        ValueError: tfddl is not initialized. It names the `call` that needs the job.
    """
    current(call)
    return process_set.ranks or []


def even_hosts(process_set: ProcessSet) -> list[list[int]] | None:
    """The members by host, if collectives may go by hosts, and several hosts have equally many members, several each.

    Returns:
        For each host the ranks of its members within the set, in ascending order; the same on all ranks. Or None.

    Raises:
        ValueError: tfddl is not initialized.
    """
    job, found = current(), defaultdict(list)
    for rank, member in enumerate(members(process_set)):
        found[job.hosts[member]].append(rank)
    hosts = list(found.values())
    even = len({len(host) for host in hosts}) == 1
    return hosts if job.by_hosts and even and 1 < len(hosts) < sum(map(len, hosts)) else None


def serial(number: int) -> int:
    """The serial of a process set: sets of different jobs share numbers, but not serials. 0 for the global set."""
    return process.job.serials.get(number, 0) if process.job is not None else 0


def rank_in(process_set: ProcessSet) -> int:
    """The rank of this process within the set. 0 if it is not a member: its collectives raise when they run."""
    rank_queries.note_trace("the gradient of a collective")
    return (process_set.rank() or 0) if process_set.included() else 0


def of_ranks(ranks: list[int] | None) -> ProcessSet:
    """The job's process set of these ranks, or a new set that is not part of the job. None stands for all ranks."""
    if ranks is None:
        return global_process_set
    known = [one for one in (process.job.sets.values() if process.job else ()) if one.ranks == ranks]
    return known[0] if known else ProcessSet(ranks)
