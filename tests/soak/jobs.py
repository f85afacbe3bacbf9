"""The jobs of `make soak`: starts them by tfddlrun, follows their progress, and reads their results."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.launch.support import running
from tests.soak.load import random_load
from tests.soak.samples import Sample

FOUND = "hashes: "
"""Before the result of a job that repeats a step."""


class SoakError(Exception):
    """A job failed. The text is the end of its output."""


def soak(steps: int, ranks: int, seed: int, progress: Callable[[int], None]) -> list[list[Sample]]:
    """Runs `steps` steps. Calls `progress` with the number of steps made, from time to time.

    Returns:
        The samples of each rank.

    Raises:
        SoakError: The job failed.
    """
    with tempfile.TemporaryDirectory(prefix="tfddl-soak-") as name:
        files = [Path(name, f"rank{rank}.jsonl") for rank in range(ranks)]

        def look() -> None:
            samples = _read(files[0])
            progress(samples[-1].step if samples else 0)

        _run(ranks, ["tests.soak.rank", str(steps), str(seed), name], look)
        return [_read(file) for file in files]


def hashes(runs: int, ranks: int) -> set[str]:
    """Repeats one training step in a job, with random load beside it. Returns the hashes of the weights.

    Raises:
        SoakError: The job failed.
    """
    with random_load():
        output = _run(ranks, ["tests.soak.repeat", str(runs)], lambda: None)
    (line,) = [line for line in output.splitlines() if FOUND in line]
    return set(json.loads(line.partition(FOUND)[2]))


def _run(ranks: int, module: list[str], look: Callable[[], None]) -> str:
    with tempfile.TemporaryFile("w+") as file:
        command = ["-np", str(ranks), sys.executable, "-m", *module]
        with running(command, stdout=file, stderr=subprocess.STDOUT) as job:
            while job.process.poll() is None:
                look()
                time.sleep(0.1)
        file.seek(0)
        output = file.read()
    if job.process.returncode:
        end = "\n".join(output.splitlines()[-30:])
        raise SoakError(f"The job ended with code {job.process.returncode}:\n{end}")
    return output


def _read(file: Path) -> list[Sample]:
    text = file.read_text() if file.exists() else ""
    return [Sample(**json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]
