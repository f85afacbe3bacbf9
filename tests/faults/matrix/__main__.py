"""`python -m tests.faults.matrix`: runs the cells, and prints a table with the seconds of each."""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.faults.matrix.cells import Cell, cells
from tests.faults.matrix.expectations import expected
from tests.faults.matrix.run import FACTOR, Outcome, run
from tests.harness.job import REPOSITORY

DIRECTORY = REPOSITORY / "build" / "faults"
Result = dict[str, Any]


class Results:
    """The results of earlier and of this run, one line of JSON for each cell."""

    def __init__(self, directory: Path, fresh: bool):
        self._directory = directory
        self._file = directory / "results.jsonl"
        directory.mkdir(parents=True, exist_ok=True)
        if fresh:
            self._file.unlink(missing_ok=True)
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self.by_cell: dict[str, Result] = {line["cell"]: line for line in map(json.loads, lines)}

    def add(self, cell: Cell, outcome: Outcome) -> Result:
        """Keeps the outcome of a cell, and the output of one that has failed."""
        result: Result = {"cell": cell.name, "when": time.strftime("%F %T"), "output": ""}
        result |= {"problems": outcome.problems, "seconds": round(outcome.seconds, 1), "code": outcome.code}
        if outcome.problems:
            path = self._directory / (re.sub(r"\W+", "-", cell.name).strip("-") + ".txt")
            path.write_text(outcome.output)
            result["output"] = str(path)
        with self._file.open("a") as file:
            print(json.dumps(result), file=file)
        self.by_cell[cell.name] = result
        return result


def chosen(patterns: Sequence[str]) -> list[Cell]:
    """The cells whose name matches one of the patterns, or begins so; all without a pattern."""
    return [
        cell
        for cell in cells()
        if not patterns or any(fnmatch(cell.name, pattern + end) for pattern in patterns for end in ("", "*"))
    ]


def run_all(todo: Sequence[Cell], jobs: int, factor: float, results: Results, console: Console) -> None:
    """Runs cells, some at a time."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(jobs) as pool:
        task = progress.add_task("cells", total=len(todo))
        futures: dict[Future[Outcome], Cell] = {pool.submit(run, cell, factor): cell for cell in todo}
        try:
            for future in as_completed(futures):
                result = results.add(futures[future], future.result())
                progress.advance(task)
                word = "FAILED" if result["problems"] else "passed"
                progress.console.print(
                    f"{word} {result['seconds']:6.1f} s  {result['cell']}", markup=False, highlight=False
                )
        except BaseException:
            pool.shutdown(cancel_futures=True)  # the running cells come to their ends
            raise


def show(todo: Sequence[Cell], results: Results) -> int:
    """Prints the table and the summary. Returns the number of cells that have failed."""
    table = Table("cell", "exit code", "seconds", "bound", "result")
    failed, seconds = 0, []
    for cell in todo:
        result = results.by_cell[cell.name]
        seconds.append(result["seconds"])
        failed += bool(result["problems"])
        said = "\n".join([*result["problems"], result["output"]]) if result["problems"] else "passed"
        bound = f"{expected(cell).bound():.0f}"
        row = (cell.name, str(result["code"]), f"{result['seconds']:.1f}", bound, said)
        table.add_row(*map(escape, row))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    print(f"{len(todo) - failed} passed, {failed} failed; from fault to end: ", end="")
    print(f"median {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s")
    return failed


@click.command(epilog="Example: python -m tests.faults.matrix --only SIGKILL --only '*in init*'")
@click.option("--only", "patterns", multiple=True, metavar="PATTERN", help="Only cells whose name begins so.")
@click.option("--fresh", is_flag=True, help="Forget earlier results and begin again.")
@click.option("--jobs", default=2, show_default=True, help="Cells that run at the same time.")
@click.option(
    "--factor", default=FACTOR, show_default=True, help="How much slower this machine is than a quiet one."
)
@click.option("--list", "only_list", is_flag=True, help="Print the cells and run none.")
def main(patterns: tuple[str, ...], fresh: bool, jobs: int, factor: float, only_list: bool) -> None:
    """Runs a training job for each fault at each moment, and checks how the job ends.

    A cell is one job: `SIGKILL in init, rank 1 of 2, tfddlrun`. Its end has to come in time, with the right exit code, with
    the rank and the reason in the output, and with no process left; under tfddlrun in the last lines, and with no file
    left. The table says, for each cell, the seconds from the fault to the end, and the bound on a quiet machine.

    A second run goes on where the first was interrupted: cells that have passed are not run again. Results are in
    build/faults/results.jsonl, beside the outputs of cells that have failed.

    Exits with code 1 if a cell has failed.
    """
    selected = chosen(patterns)
    if not selected:
        raise click.UsageError(f"No cell matches. Received: {', '.join(patterns)}. --list prints all cells.")
    if only_list:
        print(*(f"{cell.name}: {expected(cell).bound():.0f} s" for cell in selected), sep="\n")
        return
    os.environ.setdefault("TFDDL_CACHE_DIR", str(REPOSITORY / "build/cache"))
    results = Results(DIRECTORY, fresh)
    passed = {name for name, result in results.by_cell.items() if not result["problems"]}
    todo = [cell for cell in selected if cell.name not in passed]
    run_all(todo, jobs, factor, results, Console(stderr=True, soft_wrap=True))
    sys.exit(show(selected, results) > 0)


if __name__ == "__main__":
    main()
