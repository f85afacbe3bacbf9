"""Runs tfddlrun as a user would, under a time limit that kills, and looks for processes left behind."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from tests.harness.job import SEARCH_PATH, Marked

LIMIT_S = 240.0


@dataclass
class Finished:
    """The end of a tfddlrun."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def last_line(self) -> str:
        return self.stderr.strip().splitlines()[-1]


class Running(Marked):
    """A running tfddlrun."""

    def __init__(self, arguments: list[str], **options):
        super().__init__()
        self._started = time.monotonic()
        self.process = subprocess.Popen(
            [*options.pop("prefix", []), sys.executable, "-m", "tfddl.launch.run", *arguments],
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            env=os.environ | self.environment | {"PYTHONPATH": SEARCH_PATH} | options.pop("env", {}),
            **options,
        )

    def finish(self, limit: float = LIMIT_S) -> Finished:
        """Waits for the end, at most `limit` seconds."""
        stdout, stderr = self.process.communicate(timeout=limit)
        return Finished(
            self.process.returncode,
            (stdout or b"").decode(),
            (stderr or b"").decode(),
            time.monotonic() - self._started,
        )

    def read_errors_until(self, text: str) -> None:
        """Reads stderr up to a line with this text."""
        while text.encode() not in (line := self.process.stderr.readline()):
            assert line


def wait_until(condition: Callable[[], object], limit: float = 60.0) -> None:
    """Waits for a condition, at most `limit` seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def running(arguments: list[str], **options) -> Iterator[Running]:
    """Starts tfddlrun. At the end it kills all processes that are left, and fails if there were any."""
    job = Running(arguments, **options)
    try:
        yield job
        left = job.leftovers()
        assert not left, f"left running: {left}"
    finally:
        job.kill_processes()
        job.process.communicate()


def tfddlrun(*arguments: str, limit: float = LIMIT_S, **options) -> Finished:
    """Runs tfddlrun to its end."""
    with running(list(arguments), **options) as job:
        return job.finish(limit)


def run_script(text: str, ranks: int = 2, *options: str, limit: float = LIMIT_S) -> Finished:
    """Runs Python code on some ranks. `rank` and `wait_for(path)` are defined in it; MPI is not imported."""
    return tfddlrun("-np", str(ranks), *options, sys.executable, "-c", _PREAMBLE + text, limit=limit)


_PREAMBLE = """
import os, signal, sys, time
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")))
def wait_for(path):
    while not os.path.exists(path): time.sleep(0.01)
"""


def runner() -> CliRunner:
    """Runs commands in this process, with stdout and stderr apart. click before 8.2 has to be asked for that."""
    asked = "mix_stderr" in inspect.signature(CliRunner).parameters
    return CliRunner(mix_stderr=False) if asked else CliRunner()


def environment_for_recipes(folder: Path) -> Path:
    """Makes a virtual environment, as far as the recipes of deploy/ see it, with the tfddlrun of this checkout."""
    programs = folder / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").write_text(f"PATH={programs}:{Path(sys.executable).parent}:$PATH\n")
    (programs / "tfddlrun").write_text(f'#!/bin/sh\nexec {sys.executable} -m tfddl.launch.run "$@"\n')
    (programs / "tfddlrun").chmod(0o755)
    return programs.parent
