"""Runs an example, and reads epochs, metrics and times from the lines that it prints."""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT_S = 600
# Each process computes on one core. Keras' progress bars and the tables of `tfddl timeline` get a width.
ENVIRONMENT = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "PYTHONUNBUFFERED": "1",
    "COLUMNS": "120",
}
# What a progress bar writes for a terminal.
_TERMINAL = re.compile(r"\x1b\[[\d;]*m|\x08")
_PREFIX = re.compile(r"^\[\d+\] ?")
_EPOCH = re.compile(r"Epoch (\d+)/\d+$")
_LAST_STEP = re.compile(r"(\d+)/\1 ")  # of an epoch of `fit`
_OWN_LOOP = re.compile(r"(epoch|step) (\d+): ")


@dataclass(frozen=True)
class Run:
    """What a command has printed.

    Attributes:
        command: string, as a user types it.
        processes: int.
        lines: list of strings, its stdout.
        seconds: list of floats, when each line came, since the start.
        load: float, the load of the machine before it.
    """

    command: str
    processes: int
    lines: list[str]
    seconds: list[float]
    load: float = 0.0

    @property
    def unit(self) -> str:
        """What the x axis counts: "epoch", or "batch" for a program that prints steps."""
        steps = any(match and match[1] == "step" for match in map(_OWN_LOOP.match, self.texts()))
        return "batch" if steps else "epoch"

    def texts(self) -> list[str]:
        """The lines without the number of the rank."""
        return [_PREFIX.sub("", line) for line in self.lines]

    def curve(self, metric: str) -> list[tuple[float, float]]:
        """Epochs, or batches of all processes, and the values of a metric, such as "val_accuracy".

        Raises:
            click.ClickException: the lines have less than two values of it.
        """
        values = {}
        for x, line in self._points().items():
            match = re.search(rf"\b{metric}:? ([-+.\de]+)", self.texts()[line])
            if match:
                values[x] = float(match[1])
        if len(values) < 2:
            raise click.ClickException(f"{self.command} has printed no {metric} by epoch or step")
        return sorted(values.items())

    def pace(self) -> float:
        """Seconds from one epoch or batch to the next, the median. The first epoch, with its tracing, is left out."""
        points = sorted((x, self.seconds[line]) for x, line in self._points().items())
        steps = itertools.pairwise(points)
        return statistics.median((after - before) / (x2 - x1) for (x1, before), (x2, after) in steps)

    def _points(self) -> dict[float, int]:
        """Epoch, or batches of all processes so far -> the number of the line that tells its metrics."""
        found: dict[float, int] = {}
        epoch = 0
        for number, text in enumerate(self.texts()):
            if match := _EPOCH.match(text):
                epoch = int(match[1])
            elif _LAST_STEP.match(text) and epoch:
                found[epoch] = number
            elif match := _OWN_LOOP.match(text):
                found[int(match[2]) * (self.processes if match[1] == "step" else 1)] = number
        return found


def run(command: Sequence[str], shown: str, processes: int, log: Path) -> Run:
    """Runs a command in the root of the repository, with the programs of this Python's environment.

    Args:
        command: list of strings, the command.
        shown: string, the command as the page shows it.
        processes: int, the number of processes that it starts.
        log: path for its stderr.

    Raises:
        click.ClickException: the command failed; with its last lines.
    """
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, **ENVIRONMENT, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    lines, seconds = [], []
    load = os.getloadavg()[0]
    began = time.monotonic()
    with log.open("w") as errors:
        process = subprocess.Popen(
            ["timeout", "-k", "10", str(LIMIT_S), *command],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(_TERMINAL.sub("", line).rstrip())
            seconds.append(round(time.monotonic() - began, 4))
    if process.wait():
        last = "\n".join([*lines[-5:], *log.read_text(errors="replace").splitlines()[-10:]])
        raise click.ClickException(f"{shown} ended with {process.returncode}; see {log}:\n{last}")
    return Run(shown, processes, lines, seconds, load)


def save(found: Run, path: Path) -> None:
    """Keeps a run in a file."""
    path.write_text(json.dumps(asdict(found), indent=1))


def stored(path: Path) -> Run | None:
    """A run that was kept; None without it."""
    return Run(**json.loads(path.read_text())) if path.is_file() else None
