"""Adds process sets to the job and removes them. All ranks agree on each change."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tfddl.runtime import fork, library
from tfddl.runtime.agreement import in_words
from tfddl.runtime.job import Job, current, process
from tfddl.runtime.job_communicator import part
from tfddl.runtime.process_sets import ProcessSet, global_process_set
from tfddl.runtime.proposal import Proposal, agreed_groups
from tfddl.runtime.watchdog import init_watchdog

_INIT = "init"
_REMOVAL_LIMIT = 30.0  # seconds; all ranks have agreed by then


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a process set part of the job. All ranks call it, members or not, with the same ranks and in the same order.

    Args:
        process_set: A `ProcessSet`, or ranks.

    Returns:
        The `ProcessSet`, ready for use.

    Raises:
        ValueError: On all ranks: the ranks gave different sets, a member is not in the job, a set of these ranks exists
            already, or a rank has joined. Or tfddl is not initialized.
        RuntimeError: The job has failed meanwhile, or this process was forked from a rank.

    Example:
        On 2 ranks:

        >>> first = hvd.add_process_set([0])
        >>> first.ranks, first.size()
        ([0], 1)
        >>> hvd.allgather_object(first.included())
        [True, False]
        >>> hvd.remove_process_set(first)
        True
    """
    job = _require("add_process_set")
    objection = ""
    try:
        made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    except ValueError as error:
        made, objection = ProcessSet([]), str(error)
    with job.lock:
        return _add(job, "add_process_set", [made], objection)[0]


def remove_process_set(process_set: ProcessSet) -> bool:
    """Takes a process set out of the job. All ranks call it, members or not, in the same order.

    Sets that one call has made of disjoint communicators are removed together. Each rank passes its own `ProcessSet`; a rank
    with `MPI.COMM_NULL` passes that object too.

    Args:
        process_set: A set that `init` or `add_process_set` has added.

    Returns:
        True. False, without any effect, for the global set and for a set that is not part of the job. The number of a
        removed set is not used again, so a function that was traced for the set raises.

    Raises:
        TypeError: `process_set` is no `ProcessSet`.
        ValueError: On all ranks: the ranks gave different sets, a collective of the set is still in flight, or a rank
            has joined.
        RuntimeError: The job has failed meanwhile, or this process was forked from a rank.
    """
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            f"remove_process_set takes a ProcessSet: pass what add_process_set returned. Received: {process_set!r}"
        )
    family = [one for one in process_set._family if one.registered()]
    if not family:
        return False
    job = _require("remove_process_set")
    with job.lock:
        native = library.native()
        busy = next(
            filter(None, (native.tfddl_set_in_flight(one.process_set_id) for one in family)), b""
        ).decode()
        objection = f"{busy} still in flight: wait for it first" if busy else ""
        mine = Proposal("remove_process_set", [("ranks", one.ranks or []) for one in family], objection)
        agreed_groups(mine, _gather(job, mine))
        for one in family:
            _remove(job, one)
    return True


def add_static(given: Any) -> None:
    """Adds the process sets that `init()` was given. The ranks compare them.

    Raises:
        ValueError: On all ranks: `given` is no list of `ProcessSet`, differs by rank, or cannot be added.
    """
    wrong = ""
    sets = [] if given is None or isinstance(given, str) else given
    if isinstance(given, str) and given != "dynamic":
        wrong = f"process_sets is a list of ProcessSet, or 'dynamic', not {given!r}"
    elif not isinstance(sets, (list, tuple)) or not all(isinstance(one, ProcessSet) for one in sets):
        sets, wrong = [], f"process_sets is a list of ProcessSet, not {given!r}"
    job = _require(_INIT)
    with job.lock:
        _add(job, _INIT, [one for one in sets if one is not global_process_set], wrong)


def renew(job: Job, process_set: ProcessSet, ranks: list[int]) -> None:
    """Adds a set of the job before to the job that goes on without ranks that were lost. All ranks call it."""
    process_set.ranks, process_set.mpi_comm = ranks, None
    _register(job, _INIT, process_set)


def _require(call: str) -> Job:
    fork.check(call)
    return current(call)


def _add(job: Job, call: str, process_sets: list[ProcessSet], objection: str) -> list[ProcessSet]:
    slots = []
    for process_set in process_sets:
        ranks, wrong = _ranks_in(job, process_set)
        objection = objection or wrong
        slots.append(("ranks" if process_set.mpi_comm is None else "comm", ranks))
    mine = Proposal(call, slots, objection)
    groups = agreed_groups(mine, _gather(job, mine))
    _refuse_known(job, [ranks for slot in groups for ranks in slot])
    for slot, process_set in enumerate(process_sets):
        family: list[ProcessSet] = []
        process_set._family = family
        for ranks in groups[slot]:
            own = process_set if slots[slot][1] == ranks else ProcessSet(ranks)
            own.ranks, own._family = ranks, family
            family.append(own)
            _register(job, call, own)
    return process_sets


def _ranks_in(job: Job, process_set: ProcessSet) -> tuple[list[int], str]:
    """The members by their rank in the job, and an error text (empty if they are valid)."""
    if process_set.registered():
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


def _refuse_known(job: Job, groups: list[list[int]]) -> None:
    for index, ranks in enumerate(groups):
        for number, known in job.sets.items():
            if known.ranks == ranks:
                use = "hvd.global_process_set" if number == 0 else f"number {number}"
                raise ValueError(
                    f"The job has a process set of these ranks already: use {use}. Received: ranks {ranks}"
                )
        if ranks in groups[:index]:
            raise ValueError(
                f"Each process set must have ranks of its own: use one set in both places. Received: ranks {ranks} twice"
            )


def _register(job: Job, call: str, process_set: ProcessSet) -> None:
    """Makes the engine of an agreed set on its members. In the end all members have it, or none."""
    ranks, native = process_set.ranks or [], library.native()
    if native.tfddl_share_gpus() != 0:
        raise RuntimeError(f"{call}: {native.tfddl_last_error().decode()}")
    number = next(job.numbers)
    address, failure, communicator = None, "", None
    try:
        with _bounded(job, call):
            if job.rank in ranks:
                communicator = part(job.communicator, ranks, number)
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
    job.sets[number], job.serials[number] = process_set, next(process.serials)
    process_set.process_set_id = number
    if communicator is not None:
        job.communicators[number] = communicator


def _remove(job: Job, process_set: ProcessSet) -> None:
    """Ends the engine of a set on whose removal all ranks have agreed."""
    number, native = process_set.process_set_id, library.native()
    assert number is not None
    if native.tfddl_remove_set(number, min(_REMOVAL_LIMIT, job.limits[1])) != 0:
        raise RuntimeError(f"remove_process_set: {native.tfddl_last_error().decode()}")
    communicator = job.communicators.pop(number, None)
    if communicator is not None:
        communicator.Free()
    del job.sets[number]
    process_set.process_set_id = None


def _bounded(job: Job, call: str) -> AbstractContextManager[None]:
    if call == _INIT:  # which has bounded its wait itself
        return nullcontext()
    return init_watchdog.bounded(f"hvd.{call}()", job.rank, job.size, job.limits)


def _gather(job: Job, mine: Proposal) -> list[Proposal]:
    """Every rank's proposal, through the engine of the global set: a rank that does not come is named.

    `init()` waits for all ranks inside MPI anyway, and the engine has run nothing when it returns.
    """
    if mine.call == _INIT:
        return list(job.communicator.allgather(mine))
    native = library.native()
    text = native.tfddl_gather(b"process sets", mine.encode())
    if text is None:
        raise RuntimeError(f"{mine.call}: {native.tfddl_last_error().decode()}")
    lines = text.decode().split("\n")[:-1]
    joined = [rank for rank, line in enumerate(lines) if not line]
    if joined:
        who = f"{in_words(joined)} {'has' if len(joined) == 1 else 'have'}"
        raise ValueError(
            f"{mine.call} needs all ranks, and {who} joined (hvd.join()). Call it before hvd.join(), or after that has "
            f"returned. Received: {mine}"
        )
    return [Proposal.decode(line) for line in lines]
