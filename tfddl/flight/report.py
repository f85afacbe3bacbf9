"""Tables and stacks on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection
from itertools import groupby

from rich import box
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tfddl.flight import stacks
from tfddl.flight.compare import JOIN, View, sets, views
from tfddl.flight.conclusion import conclude, notes, reasons
from tfddl.flight.records import Job, Operation, ProcessSet, Record
from tfddl.flight.text import duration, in_ranges

_WIDTH = 140  # of a file or a pipe
_ROWS = 16  # a job of more ranks has a row for ranks that are in the same place
_COLUMNS = 6  # kinds of ranks beside each other
_STACKS = 8  # kinds of stacks
_RUN = 2  # a longer run of calls inside libraries is shortened


def show(job: Job, *, last: int, ranks: Collection[int], threads: bool) -> None:
    """Prints what the records show, the conclusion first.

    Args:
        job: The records.
        last: The number of operations before the parting.
        ranks: The ranks whose stacks are shown; empty: all.
        threads: Whether the stacks of all threads are shown in full.
    """
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    text, found = conclude(job)
    console.print(Text(text, style="bold"))
    for note in notes(job):
        console.print(Text(note, style="yellow"), soft_wrap=True)  # it may hold a path
    console.print()
    for reason in reasons(job):
        console.print(Text(f"Written by {reason}"))
    console.print(_rank_table(job))
    shown = {parting.process_set: None for parting in found} or dict.fromkeys(sets(job)[:1])
    for process_set in shown:
        console.print(_operation_table(job, process_set, last))
    _show_stacks(console, job, ranks or list(job.records), threads)


def _rank_table(job: Job) -> Table:
    table = _table("Ranks")
    for name in ("rank", "host", "pid", "operation", "state", "since", "main thread, in your code"):
        table.add_column(name, overflow="fold")
    groups: dict[tuple[str | int, ...], list[tuple[Record, float]]] = {}
    for record in job.records.values():
        name, state, age = _current(job, record)
        alone = (record.rank,) if len(job.records) <= _ROWS else ()
        key = (name, state, stacks.where(record.stacks), *alone)
        groups.setdefault(key, []).append((record, age))
    for key, members in groups.items():
        records = [record for record, _ in members]
        hosts = sorted({record.host for record in records})
        table.add_row(
            _numbers([record.rank for record in records]),
            hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts",
            str(records[0].pid) if len(records) == 1 else "",
            Text(str(key[0])),
            str(key[1]),
            duration(max(age for _, age in members)) if key[0] else "",
            Text(str(key[2])),
        )
    return table


def _current(job: Job, record: Record) -> tuple[str, str, float]:
    """The operation that a rank has waited for longest, else its last one; its state; and the age of that."""
    every = [each for operations in record.operations.values() for each in operations]
    if waiting := [each for each in every if each.ended_us is None]:
        operation = min(waiting, key=lambda each: (each.name == JOIN, each.submitted_us))
    elif every:
        operation = max(every, key=lambda each: each.changed_us)
    else:
        return "", "no operation yet" if record.job else "in hvd.init()", 0.0
    return record.title(operation), operation.state, job.age(record, operation.changed_us)


def _operation_table(job: Job, process_set: ProcessSet, last: int) -> Table:
    seen = views(job, process_set)
    tickets, names = _rows(seen, last)
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, view in seen.items():
        states = [_state(view, view.tickets.get(each), each) for each in tickets]
        states += [_state(view, view.pending.get(name), None) for name in names]
        groups.setdefault(tuple(states), []).append(rank)
    columns = _columns(list(groups.values()))
    table = _table(f"Operations of {process_set.title}, the last ones")
    table.add_column("ticket", justify="right")
    table.add_column("operation", overflow="fold")
    for ranks in columns:
        table.add_column(in_ranges(ranks), overflow="fold")
    firsts = [seen[ranks[0]] for ranks in columns]
    for ticket in tickets:
        name = next(view.tickets[ticket].name for view in seen.values() if ticket in view.tickets)
        cells = [_cell(job, view, view.tickets.get(ticket), ticket) for view in firsts]
        table.add_row(str(ticket), Text(name), *cells)
    for name in names:
        table.add_row("", Text(name), *(_cell(job, view, view.pending.get(name), None) for view in firsts))
    if left_out := len(groups) - len(columns):
        table.caption = f"{left_out} more kinds of ranks are not shown."
    return table


def _rows(seen: dict[int, View], last: int) -> tuple[list[int], list[str]]:
    """The tickets before the first operation that has not ended, those that have not, and names without a ticket."""
    unfinished = sorted(set().union(*(view.open_tickets for view in seen.values())))
    first = unfinished[0] if unfinished else float("inf")
    done = sorted({ticket for view in seen.values() for ticket in view.tickets if ticket < first})
    names = dict.fromkeys(name for view in seen.values() for name in view.pending)
    return [*done[-last:], *unfinished[: last + 1]], list(names)[: last + 1]


def _state(view: View, operation: Operation | None, ticket: int | None) -> str:
    if operation is not None:
        return operation.state
    if ticket is not None and ticket < view.first_ticket:
        return "not kept"
    return "has joined" if view.joined else "-"


def _cell(job: Job, view: View, operation: Operation | None, ticket: int | None) -> Text:
    state = _state(view, operation, ticket)
    if operation is None:
        return Text(state, style="" if state != "-" else "bold red")
    age = duration(job.age(view.record, operation.changed_us))
    return Text(f"{state} {age} ago", style="" if state == "ended" else "bold")


def _columns(groups: list[list[int]]) -> list[list[int]]:
    """The ranks of each column: the largest group and the smallest ones, by their first rank."""
    by_size = sorted(groups, key=len)
    return sorted(by_size if len(groups) <= _COLUMNS else [*by_size[: _COLUMNS - 1], by_size[-1]])


def _show_stacks(console: Console, job: Job, ranks: Collection[int], threads: bool) -> None:
    texts = {rank: record.stacks for rank, record in job.records.items() if rank in ranks}
    groups = stacks.equal_stacks(texts)
    if not groups:
        console.print(Text("The records have no Python stacks."))
        return
    console.print(
        Text("Stacks of the main threads, the innermost call first; -> marks your code", style="bold")
    )
    panels = [_panel(in_ranges(members), thread, whole=threads) for members, thread in groups[:_STACKS]]
    console.print(Columns(panels))
    if (more := len(groups) - _STACKS) > 0:
        console.print(Text(f"{more} more kinds of stacks are not shown. Choose ranks with --rank."))
    if threads:
        for rank in [members[0] for members, _ in groups[:_STACKS]]:
            console.print(Text(f"All threads of rank {rank}", style="bold"))
            others = stacks.parse(texts[rank])[:-1]
            console.print(Columns([_panel(thread.title, thread, whole=True) for thread in others]))


def _panel(title: str, thread: stacks.Thread, whole: bool) -> Panel:
    text = Text("\n").join(_lines(thread, whole))
    return Panel(text or Text("no Python frame"), title=Text(title), expand=False, box=box.SQUARE)


def _lines(thread: stacks.Thread, whole: bool) -> list[Text]:
    """A line for each call. Calls inside libraries are put together behind the first one, unless the whole is wanted."""
    lines: list[Text] = []
    for package, run in groupby(thread.frames, key=lambda frame: bool(frame.package)):
        frames = list(run)
        shown = frames[:1] if package and not whole and len(frames) > _RUN else frames
        for frame in shown:
            marked = frame is thread.user_frame
            lines.append(Text(f"{'->' if marked else '  '} {frame.text}", style="bold" if marked else ""))
        if hidden := frames[len(shown) :]:
            names = ", ".join(dict.fromkeys(frame.package for frame in hidden))
            lines.append(Text(f"     {len(hidden)} more calls in {names}", style="dim"))
    return lines


def _numbers(ranks: list[int]) -> str:
    return in_ranges(ranks).partition(" ")[2]


def _table(title: str) -> Table:
    return Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
