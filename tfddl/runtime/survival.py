"""Survival: the ranks that are left of a job go on in the processes they are in, with ULFM, the fault tolerance of MPI."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

from tfddl.runtime import basics, library, registration
from tfddl.runtime.job import Job, current, process
from tfddl.runtime.process_sets import ProcessSet
from tfddl.runtime.watchdog import init_watchdog

# The survivors meet within moments. If one of them is stopped, the process ends after these seconds.
_LIMIT_S = 30.0
_STALLED = "Stalled: "  # how the engine's reason begins where no rank has died


def job_has_lost() -> bool:
    """Whether the job has failed, and MPI can tell whether because of ranks that have died."""
    reason = library.native().tfddl_failure().decode()
    return bool(reason) and not reason.startswith(_STALLED) and hasattr(library.mpi().Comm, "Shrink")


def go_on_without_the_lost(accepts: Callable[[bool], bool]) -> bool:
    """Makes the ranks that live the ranks of the job, in their order. All of them call it, after the job has failed.

    Process sets go on with the members that live, under their numbers, so that functions which were traced for them go on
    too; sets without any are gone.

    Args:
        accepts: Whether the program can go on, given whether ranks get other numbers.

    Returns:
        Whether the job goes on. Else no rank has died, or the program cannot go on; the job stays a failed one.

    Raises:
        Exception: MPI's, or that of `init()`, if more ranks die meanwhile.
    """
    job = current()
    left = _living(job)
    lost = _lost(job, left)
    if not lost or not accepts(lost[0] < left.size):
        return False
    sets = [(number, one) for number, one in sorted(job.sets.items()) if number]
    members = [_renumbered(one.ranks or [], lost) for _, one in sets]
    owners = _by_number(job, process.owners)
    process.survives = True
    basics.shutdown()
    basics.init(left)
    _renew(current(), [(*one, ranks) for one, ranks in zip(sets, members, strict=True)])
    _count_on(current(), owners)
    return True


def _living(job: Job) -> Any:
    """A communicator of the ranks that live."""
    before = job.communicator
    before.Set_errhandler(job.MPI.ERRORS_RETURN)
    limits = (_LIMIT_S / 2, _LIMIT_S)
    with init_watchdog.bounded("the recovery from the loss of a rank", job.rank, job.size, limits):
        before.Revoke()
        return before.Shrink()


def _lost(job: Job, left: Any) -> list[int]:
    everybody, living = job.communicator.Get_group(), left.Get_group()
    numbers = job.MPI.Group.Translate_ranks(living, None, everybody)
    everybody.Free()
    living.Free()
    return sorted(set(range(job.size)) - set(numbers))


def _by_number(job: Job, owners: Counter[tuple[int, str]]) -> dict[tuple[int, str], int]:
    """The numbers of owners of each kind, by process set."""
    numbers = {0: 0, **{serial: number for number, serial in job.serials.items()}}
    return {(numbers[serial], kind): count for (serial, kind), count in owners.items() if serial in numbers}


def _count_on(job: Job, owners: dict[tuple[int, str], int]) -> None:
    """Names new optimizers equally on all ranks, and differently from those of these processes, which go on.

    Some ranks may have begun the first step of an optimizer when the job failed, and others not.
    """
    of_all_ranks = job.communicator.allgather(owners)
    process.owners.clear()
    for counts in of_all_ranks:
        for (number, kind), count in counts.items():
            key = job.serials.get(number, 0), kind
            if number == 0 or number in job.serials:
                process.owners[key] = max(process.owners[key], count)


def _renumbered(ranks: list[int], lost: list[int]) -> list[int]:
    return [rank - sum(one < rank for one in lost) for rank in ranks if rank not in lost]


def _renew(job: Job, sets: list[tuple[int, ProcessSet, list[int]]]) -> None:
    for number, process_set, ranks in sets:
        if ranks:
            job.numbers = itertools.count(number)
            registration.renew(job, process_set, ranks)
    if sets:
        job.numbers = itertools.count(sets[-1][0] + 1)
