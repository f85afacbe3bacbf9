"""What the records show, in a few sentences."""

from __future__ import annotations

from tfddl.flight import stacks
from tfddl.flight.compare import Kind, Parting, View, last_common, partings, sets, views
from tfddl.flight.records import Job, Operation, Record
from tfddl.flight.text import arguments, capital, differences, duration, in_ranges, in_short
from tfddl.runtime.agreement import first_few

_GROUPS = 4  # so many kinds of ranks are described; the tables show all
_YOUNG = 1.0  # seconds
_SPREAD = 10.0  # seconds
_ASKED = ("signal ", "hvd.")  # the reason of a record that someone wanted
_AGE = "\0"  # stands for an age


def conclude(job: Job) -> tuple[str, list[Parting]]:
    """The conclusion as text, and the partings that it comes from, the cause first."""
    found = partings(job)
    if not found:
        return _nothing(job), []
    text = _describe(job, found[0], found)
    if others := [each for each in found[1:] if f"'{each.name}'{each.process_set.attribute}" not in text]:
        text += f" {_others(others)}"
    asked = all(record.reason.startswith(_ASKED) for record in job.records.values())
    waited = job.last_written - min(parting.since for parting in found)
    if asked and waited < _YOUNG:
        text = (
            f"The ranks seem to be at work: nothing has waited longer than {duration(waited)}. If they hang, write the "
            f"records once more. {text}"
        )
    return text, found


def notes(job: Job) -> list[str]:
    """What a reader has to know about the records themselves."""
    lines = []
    if absent := job.absent:
        lines.append(
            f"No record of {in_ranges(absent)}: stopped, dead, or on a host whose directory is another."
        )
    if early := [rank for rank, record in job.records.items() if not record.job]:
        lines.append(f"{capital(in_ranges(early))} wrote before hvd.init() had ended.")
    first = min(record.written for record in job.records.values())
    if job.last_written - first > _SPREAD:
        late = [rank for rank, each in job.records.items() if job.last_written - each.written > _SPREAD]
        lines.append(
            f"The records were written over {duration(job.last_written - first)}; older ones, of {in_ranges(late)}, "
            "do not show what these ranks did later."
        )
    return [*lines, *job.left_out]


def reasons(job: Job) -> list[str]:
    """Why the records were written, for each reason the ranks."""
    groups: dict[str, list[int]] = {}
    for rank, record in job.records.items():
        groups.setdefault(in_short(record.reason), []).append(rank)
    return [f"{in_ranges(ranks)}: {reason or 'no reason given'}" for reason, ranks in groups.items()]


def _nothing(job: Job) -> str:
    known = sets(job)
    if not known:
        return "No rank has begun a collective: all records are from before the end of hvd.init()."
    lines = []
    for process_set in known:
        seen = views(job, process_set)
        where = "" if process_set.id == 0 else f"In {process_set.title}: "
        if common := last_common(seen):
            view = next(each for each in seen.values() if common.ticket in each.tickets)
            lines.append(
                f"{where}All ranks with a record have done the same operations: the last is {_title(common)}, "
                f"which ended {_ago(job, view.record, common.ended_us)}. None waits for another."
            )
        elif seen:
            lines.append(f"{where}No rank waits for another, and no operation has ended on all of them.")
    return " ".join(lines)


def _describe(job: Job, parting: Parting, found: list[Parting]) -> str:
    seen = views(job, parting.process_set)
    name = f"'{parting.name}'{parting.process_set.attribute}"
    if parting.kind == Kind.ARGUMENTS:
        when = duration(job.last_written - parting.since)
        more = f" {capital(in_ranges(parting.suspects))} did not submit it." if parting.suspects else ""
        return f"The ranks submitted {name} with different arguments, {when} ago: {_sides(parting)}.{more}"
    if parting.kind == Kind.MISSING:
        return _missing(job, parting, seen, found)
    if parting.kind == Kind.AGREEMENT:
        text = f"All ranks have submitted {name} with equal arguments, and have not agreed on it"
        return f"{text}: {_states(job, parting)}."
    if parting.kind == Kind.TRANSFER:
        text = f"All ranks have agreed on {name}{_number(parting)}, and its transfer has not ended on all"
        absent = [rank for rank in parting.suspects if rank not in parting.operations]
        more = (
            f" {capital(in_ranges(absent))} may have stopped or died in it: there is no record."
            if absent
            else ""
        )
        return f"{text}: {_states(job, parting)}.{more}"
    text = f"{name}{_number(parting)} failed on {in_ranges(parting.suspects or parting.operations)}"
    rank = next(iter(parting.suspects or parting.operations))
    reason = in_short(job.records[rank].reason)
    more = f" The record of rank {rank} says: {reason}" if reason else ""
    return f"{text}: {_states(job, parting)}.{more}"


def _missing(job: Job, parting: Parting, seen: dict[int, View], found: list[Parting]) -> str:
    where = "" if parting.process_set.id == 0 else f"In {parting.process_set.title}: "
    common = last_common(seen)
    if common:
        after = f" after {_title(common)}, the last operation that all of them did"
    elif any(view.tickets for view in seen.values()):
        after = "; the records hold no operation that all of them did"
    else:
        after = " at the first operation"
    text = f"{where}Ranks part{after}. {capital(in_ranges(parting.operations))} submitted '{parting.name}'"
    text += f"{_more(parting)} ({_details(job, parting)})"
    joined = [rank for rank, view in seen.items() if view.joined and rank not in parting.operations]
    if joined:
        text += f" ({in_ranges(joined)} {'has' if len(joined) == 1 else 'have'} joined)"
    has = "has" if len(parting.suspects) == 1 else "have"
    if not any(rank in job.records for rank in parting.suspects):
        return f"{text}; {in_ranges(parting.suspects)} {has} no record."
    text += f"; {in_ranges(parting.suspects)} {has} not."
    return f"{text} {' '.join(_others_do(job, parting, found))}"


def _others_do(job: Job, parting: Parting, found: list[Parting]) -> list[str]:
    """What the ranks did that the others wait for: a sentence for all that did the same."""
    groups: dict[tuple[str, str], tuple[str, list[int]]] = {}
    for rank in parting.suspects:
        if rank in job.records:
            did, age = _instead(job, job.records[rank], parting, found)
            place = _place(job.records[rank])
        else:
            did, age, place = "left no record", "", ""
        text = did.replace(_AGE, age) + place
        groups.setdefault((did, place), (text, []))[1].append(rank)
    sentences = [f"{capital(in_ranges(ranks))} {text}." for text, ranks in groups.values()]
    if len(sentences) > _GROUPS:
        sentences[_GROUPS:] = ["The table of ranks has the others."]
    return sentences


def _place(record: Record) -> str:
    if stacks.has_raised(record.stacks):
        return f"; an exception has ended it: {in_short(record.reason)}"
    place = stacks.where(record.stacks)
    return f"; main thread: {place}" if place else ""


def _instead(job: Job, record: Record, parting: Parting, found: list[Parting]) -> tuple[str, str]:
    """What a rank did that the others wait for, with _AGE for its age, and the age, by which ranks may differ."""
    rank = record.rank
    for other in found:
        if other is not parting and rank in other.operations and rank not in other.suspects:
            operation = other.operations[rank]
            instead = " instead" if other.process_set == parting.process_set else ""
            name = f"'{other.name}'{other.process_set.attribute}{_more(other)}{instead}"
            return f"submitted {name} ({_arguments(operation)}{_AGE})", _ago(
                job, record, operation.submitted_us
            )
    if (last := record.last) is None:
        return "submitted nothing yet", ""
    return f"submitted nothing after {record.title(last)} ({last.state} {_AGE})", _ago(
        job, record, last.changed_us
    )


def _states(job: Job, parting: Parting) -> str:
    """In which state the operation is on which ranks, and since when."""
    groups: dict[str, list[int]] = {}
    for rank, each in parting.operations.items():
        groups.setdefault(each.state, []).append(rank)
    texts = []
    for state, ranks in groups.items():
        operation = parting.operations[ranks[0]]
        texts.append(
            f"{state} on {in_ranges(ranks)} {_ago(job, job.records[ranks[0]], operation.changed_us)}"
        )
    return "; ".join(texts)


def _sides(parting: Parting) -> str:
    groups: dict[str, list[int]] = {}
    for rank, each in parting.operations.items():
        if each.signature:
            groups.setdefault(each.signature, []).append(rank)
    return "; ".join(
        f"{in_ranges(ranks)}: {text}"
        for ranks, text in zip(groups.values(), differences(list(groups)), strict=True)
    )


def _others(others: list[Parting]) -> str:
    names = [f"'{each.name}'{each.process_set.attribute} ({each.kind.value})" for each in others]
    return f"Open as well: {first_few(names)}."


def _details(job: Job, parting: Parting) -> str:
    rank = min(
        parting.operations, key=lambda rank: job.records[rank].when(parting.operations[rank].submitted_us)
    )
    operation = parting.operations[rank]
    return f"{_arguments(operation)}{_ago(job, job.records[rank], operation.submitted_us)}"


def _arguments(operation: Operation) -> str:
    text = arguments(operation.signature)
    return f"{text}, " if text else ""


def _more(parting: Parting) -> str:
    """How many operations share the fate of this one."""
    count = len(parting.also)
    return f" and {count} more" if count else ""


def _title(operation: Operation) -> str:
    return f"'{operation.name}' (ticket {operation.ticket})"


def _number(parting: Parting) -> str:
    return "" if parting.ticket is None else f" (ticket {parting.ticket})"


def _ago(job: Job, record: Record, time_us: int | None) -> str:
    return "at an unknown time" if time_us is None else f"{duration(job.age(record, time_us))} ago"
