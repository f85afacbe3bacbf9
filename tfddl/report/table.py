"""Tables of numbers on the terminal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def show(
    title: str,
    lines: Sequence[Mapping[str, Any]],
    notes: Sequence[str] = (),
    *,
    left: Collection[str] = (),
    new_section: str = "",
) -> None:
    """Prints a table.

    Args:
        title: The heading.
        lines: One mapping for each line. All have the same keys, which are the columns.
        notes: Lines below the table.
        left: Columns aligned to the left. The others are aligned to the right.
        new_section: A column; a rule separates lines with different values of it.
    """
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in lines[0] if lines else ():
        table.add_column(column, justify="left" if column in left else "right", no_wrap=True)
    for line, following in zip_longest(lines, lines[1:]):
        ends = bool(new_section and following and line[new_section] != following[new_section])
        table.add_row(*(cell(value) for value in line.values()), end_section=ends)
    # The width is fixed, since mpirun gives a rank a terminal of 80 columns in any case.
    # Names in brackets are no markup: 'loss[train]'.
    console = Console(width=180, color_system=None, markup=False, emoji=False)
    console.print(table)
    for note in notes:
        console.print(note)


def cell(value: object) -> str:
    """A value as text for people, with thousands separators and at most two decimals."""
    if value is None:
        return ""
    if isinstance(value, float):
        return (
            f"{value:,.0f}"
            if abs(value) >= 1000
            else f"{value:,.1f}"
            if abs(value) >= 10
            else f"{value:,.2f}"
        )
    return f"{value:,}" if isinstance(value, int) else str(value)
