"""Runs one cell, and says what is wrong with its end."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.faults.matrix import injector
from tests.faults.matrix.cells import Cell
from tests.faults.matrix.expectations import End, expected
from tests.faults.matrix.private_tmp import PrivateTmp, private_tmp
from tests.faults.support import tfddlrun
from tests.harness.job import Job
from tests.harness.mpirun import dying_with_parent, mpirun_command

FACTOR = 4.0
"""How much slower than a quiet machine this one may be."""

START_S = 150.0
"""From the start of a job to its fault: imports and a first step on a busy machine."""

LAST_LINES, MOST_FILES = 10, 8
_PROGRAM = Path(__file__).with_name("program.py")


@dataclass(frozen=True)
class Outcome:
    """How a cell ended.

    Attributes:
        problems: What is wrong; empty for a cell that has passed.
        seconds: From the fault to the end of the job with its last process; -1 without a fault or an end.
        code: The exit code, 128 + n after signal n; -1 for a job that had to be killed.
        output: What all ranks and the launcher wrote.
    """

    problems: tuple[str, ...]
    seconds: float
    code: int
    output: str


def run(cell: Cell, factor: float = FACTOR) -> Outcome:
    """Runs a cell to its end, and no longer than its bound allows."""
    end = expected(cell)
    job = Job()
    with contextlib.closing(job), private_tmp(job.directory) as tmp:
        plan = injector.fail_at(cell.rank, cell.moment, cell.fault, cell.launcher, job.directory)
        own = {"TMPDIR": str(job.directory / "tmp"), "OMPI_MCA_btl_sm_backing_directory": None}
        job.start(_command(cell, tmp), {**plan, **own, **end.environment})
        happened, ended = _follow(job, end.bound(factor))
        code = job.process.returncode
        files = tmp.files() if cell.launcher == "tfddlrun" else []
        problems = [] if ended else [f"still running: {sorted(set(job.processes().values()))}"]
        seconds = ended - happened if happened and ended else -1
        outcome = Outcome((), seconds, _shell_code(code) if ended else -1, job.output())
    if not happened:
        problems.append("the fault has not happened")
    elif ended:
        problems += check(cell, end, outcome, files)
    return Outcome(tuple(problems), outcome.seconds, outcome.code, outcome.output)


def check(cell: Cell, end: End, outcome: Outcome, files: list[str]) -> list[str]:
    """What is wrong with the end of a job that has ended in time."""
    problems = []
    if outcome.code not in end.codes:
        codes = "other than 0" if len(end.codes) > 9 else " or ".join(map(str, sorted(end.codes)))
        problems.append(f"the exit code is {outcome.code}, not {codes}")
    last = last_lines(outcome.output) if cell.launcher == "tfddlrun" else outcome.output
    for pattern in end.last:
        if not re.search(pattern, last):
            where = "the last lines have" if cell.launcher == "tfddlrun" else "the output has"
            problems.append(f"{where} no '{pattern}'")
    problems += [
        f"the output has no '{pattern}'" for pattern in end.anywhere if not re.search(pattern, outcome.output)
    ]
    if files:
        more = f" and {len(files) - MOST_FILES} more" if len(files) > MOST_FILES else ""
        problems.append(f"left: {', '.join(files[:MOST_FILES])}{more}")
    return problems


def last_lines(output: str) -> str:
    """The last words of tfddlrun, which may be a long traceback; else the last lines."""
    lines = output.rstrip().splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("tfddlrun: ")]
    return "\n".join(lines[min([*starts[-1:], max(0, len(lines) - LAST_LINES)]) :])


def _command(cell: Cell, tmp: PrivateTmp) -> list[str]:
    # Only mpirun is tied to this process: a killed mpirun must end its ranks without our help.
    program = [sys.executable, str(_PROGRAM)]
    if cell.launcher == "tfddlrun":
        return dying_with_parent(tmp.command([*tfddlrun(cell.size), *program]))
    return tmp.command(mpirun_command(cell.size, program, ranks_too=False))


def _follow(job: Job, bound: float) -> tuple[float, float]:
    """Waits for the end of a job with all its processes. Returns the times of the fault and of the end; 0 for none."""
    mark, start = job.directory / "fault", time.time()
    while True:
        happened = float(mark.read_text() or 0) if mark.exists() else 0.0
        if job.process.poll() is not None and not job.processes():
            return happened, time.time()
        if time.time() > (happened + bound if happened else start + START_S):
            return happened, 0.0
        time.sleep(0.05)


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code
