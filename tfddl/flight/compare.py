"""Finds the operations on which ranks part. Ranks are compared by ticket and by name, never by position."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from tfddl.flight.records import Job, Operation, ProcessSet, Record

JOIN = "hvd.join()"


class Kind(Enum):
    """How ranks part."""

    ARGUMENTS = "different arguments"
    MISSING = "not submitted by all"
    AGREEMENT = "not agreed on"
    TRANSFER = "transfer not ended"
    FAILURE = "failed on some"


@dataclass
class Parting:
    """An operation that does not end on at least one member of its process set."""

    process_set: ProcessSet
    name: str
    ticket: int | None
    kind: Kind
    operations: dict[int, Operation]  # by the ranks that submitted it
    suspects: list[int]  # the ranks that the others wait for
    since: float  # Unix seconds of the first submission
    also: list[str] = field(default_factory=list)  # operations of the same ranks with the same suspects


@dataclass
class View:
    """What one member recorded of a process set."""

    record: Record
    tickets: dict[int, Operation]
    open_tickets: set[int]  # of operations that have not ended, or that failed at the end of the job
    pending: dict[str, Operation]  # the same without a ticket, by name
    last_ticket: dict[str, int]  # by name
    first_ticket: float  # the ring has dropped those before
    joined: bool


def partings(job: Job) -> list[Parting]:
    """The operations on which ranks part, the cause first."""
    found = [parting for process_set in sets(job) for parting in _of_set(job, process_set)]
    waiting = {rank for parting in found for rank in parting.operations if rank not in parting.suspects}

    def order(parting: Parting) -> tuple[bool, bool, bool, float]:
        held_up = not waiting.isdisjoint(parting.suspects)
        return parting.kind != Kind.ARGUMENTS, held_up, parting.name == JOIN, parting.since

    return _merged(sorted(found, key=order))


def sets(job: Job) -> list[ProcessSet]:
    """The process sets that any rank has recorded."""
    known: dict[int, ProcessSet] = {}
    for record in job.records.values():
        known = record.sets | known
    return [known[number] for number in sorted(known)]


def views(job: Job, process_set: ProcessSet) -> dict[int, View]:
    """What the members with a record recorded of a set, by rank."""
    members = (job.records.get(rank) for rank in process_set.ranks)
    return {record.rank: _view(record, process_set.id) for record in members if record is not None}


def last_common(seen: dict[int, View]) -> Operation | None:
    """The last operation that ended on all members, apart from those that have joined. None if there is none."""
    present = [view for view in seen.values() if not view.joined] or list(seen.values())
    ended = [{ticket for ticket, each in view.tickets.items() if each.state == "ended"} for view in present]
    common = set.intersection(*ended) if ended else set()
    return present[0].tickets[max(common)] if common else None


def _view(record: Record, number: int) -> View:
    operations = record.operations.get(number, [])
    done = max((each.submitted_us for each in operations if each.state == "ended"), default=-math.inf)
    tickets: dict[int, Operation] = {}
    open_tickets: set[int] = set()
    pending: dict[str, Operation] = {}
    last_ticket: dict[str, int] = {}
    for each in operations:
        unfinished = _unfinished(each, done)
        if each.ticket is None:
            if unfinished and (each.ended_us is None or each.name not in pending):
                pending[each.name] = each
            continue
        tickets[each.ticket] = each
        last_ticket[each.name] = max(each.ticket, last_ticket.get(each.name, -1))
        if unfinished:
            open_tickets.add(each.ticket)
    dropped = min((each.number for each in operations if each.number), default=1) > 1
    first = min(tickets, default=-math.inf) if dropped else -math.inf
    return View(record, tickets, open_tickets, pending, last_ticket, first, JOIN in pending)


def _unfinished(operation: Operation, done: float) -> bool:
    """Whether it has not ended, or failed and nothing that was submitted later (until `done`) succeeded."""
    if operation.ended_us is None:
        return True
    return operation.failed and operation.ended_us >= done


def _of_set(job: Job, process_set: ProcessSet) -> list[Parting]:
    seen = views(job, process_set)
    silent = [rank for rank in process_set.ranks if rank not in seen]
    found, taken = [], set()
    for ticket in sorted(set().union(*(view.open_tickets for view in seen.values()))):
        operations = _with_ticket(seen, ticket)
        taken |= {(rank, each.name) for rank, each in operations.items() if each.ticket is None}
        found.append(_parting(seen, silent, process_set, ticket, operations))
    for name in dict.fromkeys(name for view in seen.values() for name in view.pending):
        if operations := _pending(seen, name, taken):
            found.append(_parting(seen, silent, process_set, None, operations))
    return [parting for parting in found if parting is not None]


def _with_ticket(seen: dict[int, View], ticket: int) -> dict[int, Operation]:
    """The operations with a ticket, by rank; also those of ranks that have not seen the agreement yet."""
    operations = {rank: view.tickets[ticket] for rank, view in seen.items() if ticket in view.tickets}
    name = next(iter(operations.values())).name
    for rank, view in seen.items():
        if rank not in operations and name in view.pending and view.last_ticket.get(name, -1) < ticket:
            operations[rank] = view.pending[name]
    return operations


def _pending(seen: dict[int, View], name: str, taken: set[tuple[int, str]]) -> dict[int, Operation]:
    """The operations without a ticket of a name; also the agreed ones of ranks that are a vote ahead."""
    operations = {
        rank: view.pending[name]
        for rank, view in seen.items()
        if name in view.pending and (rank, name) not in taken
    }
    reached = max((seen[rank].last_ticket.get(name, -1) for rank in operations), default=-1)
    for rank, view in seen.items():
        if operations and rank not in operations and view.last_ticket.get(name, -1) > reached:
            operations[rank] = view.tickets[view.last_ticket[name]]
    return operations


def _parting(
    seen: dict[int, View],
    silent: list[int],
    process_set: ProcessSet,
    ticket: int | None,
    operations: dict[int, Operation],
) -> Parting | None:
    since = min(seen[rank].record.when(each.submitted_us) for rank, each in operations.items())
    present = {rank: view for rank, view in seen.items() if rank not in operations and not view.joined}
    missing = [rank for rank, view in present.items() if _misses(view, ticket, since)]
    if not missing and (
        any(since >= view.record.written for view in present.values()) or _ended_later(seen, operations)
    ):
        return None
    kind, suspects = _kind(operations, missing, silent)
    name = next(iter(operations.values())).name
    return Parting(process_set, name, ticket, kind, operations, suspects, since)


def _ended_later(seen: dict[int, View], operations: dict[int, Operation]) -> bool:
    """Whether it ended on some ranks only after the others had written their records, which say nothing about it then."""
    ends, others = [], []
    for rank, each in operations.items():
        record = seen[rank].record
        if each.state == "ended" and each.ended_us is not None:
            ends.append(record.when(each.ended_us))
        else:
            others.append(record.written)
    return bool(ends) and min(ends) >= max(others, default=0.0)


def _misses(view: View, ticket: int | None, since: float) -> bool:
    """Whether a rank should have submitted an operation, and did not until its record was written."""
    if since >= view.record.written:
        return False
    return ticket is None or ticket >= view.first_ticket


def _kind(operations: dict[int, Operation], missing: list[int], silent: list[int]) -> tuple[Kind, list[int]]:
    """How the ranks part, and the ranks that the others wait for."""
    states = {rank: each.state for rank, each in operations.items()}
    failed = [rank for rank, state in states.items() if state == "failed"]
    if len({each.signature for each in operations.values() if each.signature}) > 1:
        return Kind.ARGUMENTS, missing
    agreed = any(each.ticket is not None for each in operations.values())
    if not missing and failed and len(failed) < len(states):
        return Kind.FAILURE, failed
    if missing or (silent and not agreed):
        return Kind.MISSING, sorted([*missing, *silent])
    if not agreed:
        return Kind.AGREEMENT, []
    if failed:
        return Kind.FAILURE, []
    return Kind.TRANSFER, [
        rank for rank, state in states.items() if state in ("submitted", "agreed")
    ] + silent


def _merged(found: list[Parting]) -> list[Parting]:
    """Puts the operations together that the same ranks wait for on the same ranks."""
    merged: dict[tuple[object, ...], Parting] = {}
    for parting in found:
        own = parting.name if parting.kind == Kind.ARGUMENTS else ""  # of these each one is described
        key = (parting.process_set, parting.kind, own, *parting.suspects, None, *sorted(parting.operations))
        if merged.setdefault(key, parting) is not parting:
            merged[key].also.append(parting.name)
    return list(merged.values())
