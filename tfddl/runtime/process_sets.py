"""Process sets: groups of ranks that run collectives among themselves."""

from __future__ import annotations

from typing import Any

from tfddl.runtime.job import Job, current, process
from tfddl.runtime.job_communicator import is_communicator, numbers


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
        return len(self.ranks or ()) if self.registered() else None

    def rank(self) -> int | None:
        """This process's number among the members; None while the set is not part of a job.

        Raises:
            ValueError: This process is not a member.
        """
        job = process.job
        if job is None or not self.registered():
            return None
        if job.rank not in (self.ranks or ()):
            raise ValueError(f"rank {job.rank} is not a member of {self}")
        return (self.ranks or []).index(job.rank)

    def included(self) -> bool | None:
        """Whether this process is a member; None while the set is not part of a job."""
        job = process.job
        return None if job is None or not self.registered() else job.rank in (self.ranks or ())

    def registered(self) -> bool:
        """Whether it is part of the job."""
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
"""All ranks of the job: number 0. Its `ranks` are known after `init()`."""
global_process_set.process_set_id, global_process_set.ranks = 0, None


def start(job: Job) -> None:
    """A job begins, with the global set alone."""
    job.sets[0] = global_process_set
    global_process_set.ranks = list(range(job.size))


def stop(job: Job, free: bool) -> None:
    """The job has ended; `free` says whether its communicators may be freed."""
    with job.lock:
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
    if process_set is not global_process_set and not process_set.registered():
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
    sets: dict[int, ProcessSet] = current().sets
    if number not in sets:
        raise ValueError(f"There is no process set {number} in the job. Received: {sorted(sets)}")
    return sets[number]


def members(process_set: ProcessSet) -> list[int]:
    """The ranks of a set that is part of the job.

    Raises:
        ValueError: tfddl is not initialized.
    """
    current()
    return process_set.ranks or []


def serial(number: int) -> int:
    """Tells apart the sets that had this number in jobs one after the other; 0 for the global one."""
    return process.job.serials.get(number, 0) if process.job is not None else 0


def rank_in(process_set: ProcessSet) -> int:
    """This process's number in the set; 0 where it is not a member, whose collectives raise when they run."""
    return (process_set.rank() or 0) if process_set.included() else 0


def of_ranks(ranks: list[int] | None) -> ProcessSet:
    """The set of these ranks in this job, or one that is still to be added; of None all ranks."""
    if ranks is None:
        return global_process_set
    known = [one for one in (process.job.sets.values() if process.job else ()) if one.ranks == ranks]
    return known[0] if known else ProcessSet(ranks)
