"""The table of cells, the check of an end, and some cells. All of them: `make faults`."""

import dataclasses
import re

import pytest

from tests.faults.matrix import run as run_module
from tests.faults.matrix.cells import FACTORS, Cell, cells, impossible_pairs, is_sensible
from tests.faults.matrix.expectations import expected
from tests.faults.matrix.run import Outcome, check, last_lines, run
from tests.harness import long, slow
from tests.keras.pairwise import all_pairs, pairs_of

KILLED = Cell("SIGKILL", "before import", 1, 2, "tfddlrun")
GOOD = Outcome((), 0.5, 137, "[1] x\ntfddlrun: rank 1 was killed by signal 9 (SIGKILL)\n")


def values(cell: Cell) -> dict[str, object]:
    return dataclasses.asdict(cell) | {"rank": "first" if cell.rank == 0 else "last"}


def test_every_sensible_pair_of_values_has_a_cell():
    found = set().union(*(pairs_of(values(cell)) for cell in cells()))
    possible = set(all_pairs(FACTORS)) - impossible_pairs()
    assert found == possible
    assert 250 < len(cells()) <= 300 and len({cell.name for cell in cells()}) == len(cells())
    assert is_sensible("SIGKILL", "in init") and not is_sensible("out of data", "before init")


def test_the_cells_share_three_quarters_of_an_hour():
    """On two cores, two at a time, with ten seconds for the start and the rest of a job."""
    assert sum(expected(cell).waits + 10 for cell in cells()) / 2 < 45 * 60


@pytest.mark.parametrize(
    ("change", "files", "problem"),
    [
        ({}, [], None),
        ({"code": 1}, [], "the exit code is 1, not 137"),
        (
            {"output": GOOD.output.replace("rank 1", "rank 0")},
            [],
            "the last lines have no 'rank 1 was killed by",
        ),
        ({"output": GOOD.output + "tfddlrun: \n" + "noise\n" * 10}, [], "the last lines have no"),
        ({}, ["/dev/shm/sm_segment.0"], "left: /dev/shm/sm_segment.0"),
    ],
)
def test_the_check_of_an_end(change, files, problem):
    problems = check(KILLED, expected(KILLED), dataclasses.replace(GOOD, **change), files)
    assert [text for text in problems if problem and problem in text] == problems
    assert bool(problems) == bool(problem)


def test_last_lines_hold_a_long_traceback():
    output = (
        "[0] x\n" * 20 + "tfddlrun: rank 1 exited with code 1:\n" + "  File\n" * 50 + "ValueError: planted\n"
    )
    assert last_lines(output).startswith("tfddlrun: rank 1") and last_lines(output).endswith("planted")


def test_a_job_that_does_not_end_is_a_failure(monkeypatch):
    """And all of it is gone afterwards."""
    soon = dataclasses.replace(expected(KILLED), grace=0.3)
    monkeypatch.setattr(run_module, "expected", lambda cell: soon)
    outcome = run(Cell("never calls", "before import", 0, 2, "tfddlrun"), factor=1.0)
    assert outcome.code == -1 and re.match("still running: .*program.py", outcome.problems[0])


CELLS = [
    ("SIGKILL", "step 50 of fit", 1, 2, "tfddlrun"),
    slow("SIGSTOP", "in init", 0, 2, "mpirun"),
    long("SIGABRT", "in a checkpoint", 0, 3, "tfddlrun"),
    long("exit(5)", "in tracing", 1, 2, "tfddlrun"),
    slow("holds the GIL", "with jit_compile", 1, 2, "tfddlrun"),
    long("out of memory", "before init", 1, 2, "tfddlrun"),
    slow("never calls", "in a late exit handler", 0, 2, "tfddlrun"),
    slow("mpirun KILL", "in a custom loop", 1, 2, "tfddlrun"),
]


@pytest.mark.parametrize(("fault", "moment", "rank", "size", "launcher"), CELLS)
def test_cell(fault, moment, rank, size, launcher):
    outcome = run(Cell(fault, moment, rank, size, launcher))
    assert not outcome.problems, "\n".join([*outcome.problems, outcome.output])
