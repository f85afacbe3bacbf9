"""Plants faults into a copy of the repository, one at a time, and says which the tests find: `make mutants`."""

import os
import sys
from fnmatch import fnmatch
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.mutants.fault import ROOT, Fault, misfits
from tests.mutants.repository_copy import RepositoryCopy
from tests.mutants.table import FAULTS
from tfddl.build.cache import locked

DIRECTORY = ROOT / "build" / "mutants"


def chosen(patterns: tuple[str, ...]) -> dict[str, Fault]:
    """The faults whose name, file or test matches one of the patterns; all without a pattern."""

    def matches(name: str, fault: Fault, pattern: str) -> bool:
        return any(fnmatch(text, f"*{pattern}*") for text in (name, fault.file, fault.test))

    return {
        name: fault
        for name, fault in FAULTS.items()
        if not patterns or any(matches(name, fault, pattern) for pattern in patterns)
    }


def show(results: dict[str, str]) -> None:
    """Prints a table of the results."""
    table = Table("fault", "test", "result")
    for name, result in results.items():
        table.add_row(*map(escape, (name, FAULTS[name].test, result)))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


@click.command()
@click.argument("patterns", nargs=-1)
@click.option("--list", "only_list", is_flag=True, help="Print the faults and plant none.")
@click.option("--check", is_flag=True, help="Check that every fault fits the sources, and plant none.")
def main(patterns: tuple[str, ...], only_list: bool, check: bool) -> None:
    """Plants each fault whose name, file or test matches one of PATTERNS; all without a pattern.

    Exits with code 1 if a fault is not found.
    """
    faults = chosen(patterns)
    if not faults:
        raise click.UsageError(f"No fault matches. Received: {' '.join(patterns)}")
    if check:
        wrong = {name: reason for name, reason in misfits(FAULTS).items() if name in faults}
        if wrong:
            show(wrong)
        print(f"{len(faults) - len(wrong)} of {len(faults)} faults fit the sources")
        sys.exit(bool(wrong))
    if only_list:
        show({name: fault.file for name, fault in faults.items()})
        return
    os.environ.setdefault("TFDDL_CACHE_DIR", str(ROOT / "build/cache"))
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with locked(DIRECTORY.with_suffix(".lock")):
        results = plant(faults, DIRECTORY)
    show(results)
    missed = sum(result != "found" for result in results.values())
    print(f"{len(results) - missed} of {len(results)} faults found")
    sys.exit(missed > 0)


def plant(faults: dict[str, Fault], directory: Path) -> dict[str, str]:
    """Plants the faults one by one. Returns a result for each."""
    columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()
    results = {}
    with Progress(*columns, console=Console(stderr=True, soft_wrap=True)) as progress:
        task = progress.add_task("the tests without a fault", total=len(faults))
        copy = RepositoryCopy(directory)
        unsound = copy.unsound(faults.values())
        for said in set(unsound.values()):
            progress.console.print(said, markup=False)
        for name, fault in faults.items():
            progress.update(task, description=name)
            failing = fault.test in unsound
            results[name] = "the test fails without a fault" if failing else copy.find(fault)
            progress.advance(task)
            progress.console.print(f"{name}: {results[name]}", markup=False, highlight=False)
    return results


if __name__ == "__main__":
    main()
