"""Runs a script once on fresh ranks, for what ends or kills a job: nothing of it may be left."""

import contextlib
import dataclasses
import os
import signal
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness.job import Job
from tests.harness.mpirun import dying_with_parent, mpirun_command
from tests.harness.start import python_command


@dataclasses.dataclass(frozen=True)
class ScriptResult:
    """How a job ended.

    Attributes:
        code: Exit code of mpirun (or of the launcher).
        output: What all ranks and the launcher wrote, in order of arrival.
        seconds: How long it ran.
    """

    code: int
    output: str
    seconds: float


def run_script(
    size: int,
    script: str | Path,
    *arguments: str,
    limit: float = 240.0,
    environment: Mapping[str, str | None] | None = None,
    launcher: Sequence[str] | None = None,
    fresh: bool = False,
) -> ScriptResult:
    """Runs a Python script on `size` new ranks to its end.

    Args:
        size: Number of ranks; 0 runs plain `python script` without any launcher.
        script: Path of a script, or its source text.
        arguments: The script's arguments.
        limit: Seconds until the job is called hung.
        environment: Variables to add; a value of `None` removes one.
        launcher: Command line before `python script` instead of mpirun's, as `["tfddlrun", "-np", "2"]`.
        fresh: Whether each rank is a Python of its own and no fork (`tests.harness.start`), as a test of the start, the
            death or the end of a process needs it. It always is under a launcher, which looks after the process it starts.

    Returns:
        A `ScriptResult`, whatever the exit code.

    Raises:
        AssertionError: When the job still runs after `limit` seconds, or leaves a process behind. The stacks
            of the hung Python processes are in the text.
    """
    job = Job()
    with contextlib.closing(job):
        if isinstance(script, str):
            path = job.directory / "script.py"
            path.write_text(textwrap.dedent(script))
        else:
            path = script
        command = python_command([str(path), *arguments], environment, fresh or launcher is not None)
        if launcher is not None:
            command = dying_with_parent([*launcher, *command])
        else:
            command = mpirun_command(size, command) if size else dying_with_parent(command)
        start = time.monotonic()
        job.start(command, environment)
        code = job.wait(limit)
        seconds = time.monotonic() - start
        if code is None:
            _write_stacks(job, path)
            raise AssertionError(f"Still running after {limit:.0f} s: {path.name}\n{job.output()}")
        left = job.leftovers()
        if left:
            raise AssertionError(f"Left over after exit code {code}: {left}\n{job.output()}")
        return ScriptResult(code, job.output(), seconds)


def _write_stacks(job: Job, script: Path) -> None:
    """SIGABRT makes every Python of the job write its stacks to the output: PYTHONFAULTHANDLER is set."""
    for pid, command in job.processes().items():
        if str(script) in command and "die_with_parent.py" not in command and "mpirun" not in command:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)
    job.wait(20.0)
