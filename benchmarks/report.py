"""Prints results as a table on rank 0 and writes them as JSON."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpi4py import MPI

from tfddl.bench import results


def parser(description: str | None, sizes: Sequence[int] = ()) -> argparse.ArgumentParser:
    """Makes a parser with the options of all benchmarks, and `--sizes` in bytes if there are `sizes`."""
    made = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    made.add_argument("--rounds", type=int, default=15, help="blocks of calls for each way; ways take turns")
    made.add_argument("--json", type=Path, default=None, help="file for the numbers, written by rank 0")
    if sizes:
        made.add_argument("--sizes", type=int, nargs="+", default=sizes, help="bytes of the tensors")
    return made


def show(title: str, rows: Sequence[dict[str, Any]], path: Path | None, notes: Sequence[str] = ()) -> None:
    """Prints a table and writes it to a file, on rank 0 only.

    Args:
        title: Heading of the table.
        rows: One mapping for each line. All have the same keys, which are the columns.
        path: Output file for JSON, or None.
        notes: Lines below the table.
    """
    if MPI.COMM_WORLD.rank != 0:
        return
    results.show(title, rows, notes)
    if path is not None:
        mpi = MPI.Get_library_version().splitlines()[0].strip("\0")
        machine = results.machine() | {"ranks": MPI.COMM_WORLD.size, "mpi": mpi}
        document = {"title": title, "machine": machine, "rows": rows, "notes": list(notes)}
        path.write_text(json.dumps(document, indent=2, default=str) + "\n")


def fail_if_wrong(rows: Sequence[dict[str, Any]]) -> None:
    """Ends with an error on every rank if a result was wrong, since its time is not valid."""
    wrong = results.wrong(rows)
    if wrong:
        raise SystemExit(f"{wrong} elements of the results were wrong.")
