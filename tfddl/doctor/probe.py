"""Runs the probes of `tfddl doctor`, each in a process of its own with a time limit.

`python -m tfddl.doctor.probe NAME` is such a process: it prints its findings as lines of JSON. So a probe that crashes or
hangs is a finding too, and hides no other.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from tfddl.doctor import gpu, host, mpi, software
from tfddl.doctor.finding import Finding, fault
from tfddl.launch.scratch import SEGMENTS
from tfddl.launch.supervision.children import Children

LIMIT_S = 120.0
_GRACE_S = 15.0  # in which tfddlrun ends a job
_MARK = "tfddl doctor: "

PROBES: dict[str, Callable[[], Iterator[Finding]]] = {
    "python": software.python,
    "tensorflow": software.tensorflow,
    "keras": software.keras,
    "mpi": mpi.mpi,
    "threads": mpi.threads,
    "library": software.library,
    "xla": software.xla,
    "compiler": software.compiler,
    "cache": software.cache,
    "gpu": gpu.gpu,
    "shared memory": host.shared_memory,
    "locked memory": host.locked_memory,
    "cores": host.cores,
    "memory": host.memory,
    "container": host.container,
    "scheduler": host.scheduler,
    "network": host.network,
}


def run_all() -> Iterator[Finding]:
    """Runs all probes, as many at a time as there are cores, and yields their findings in the order of `PROBES`."""
    children = Children(_GRACE_S)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for findings in pool.map(functools.partial(run, children=children), PROBES):
                yield from findings
        finally:  # at Ctrl-C the pool would wait for the probes
            children.end()


def run(name: str, children: Children | None = None) -> list[Finding]:
    """Runs one probe in a new process."""
    with _scratch() as variables:
        command = [sys.executable, "-m", "tfddl.doctor.probe", name]
        return run_process(command, name, LIMIT_S, children=children, **variables)


@contextlib.contextmanager
def _scratch() -> Iterator[dict[str, str]]:
    """Environment variables for Open MPI's files, which nobody else removes after a process without mpirun."""
    with contextlib.ExitStack() as stack:
        variables = {}
        with contextlib.suppress(OSError):  # without a directory Open MPI does as well as it can
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="tfddl-doctor-"))
            variables = dict.fromkeys(("TMPDIR", *SEGMENTS), directory)
        yield variables


def run_process(
    command: list[str],
    subject: str,
    limit_s: float,
    cure: str = "",
    children: Children | None = None,
    **variables: str,
) -> list[Finding]:
    """Runs a process that prints findings, with more environment variables, and ends it with its children at the limit.

    Returns:
        The findings; one more where the process hung, crashed, or found nothing and failed.
    """
    environment = {**os.environ, **variables, "TF_CPP_MIN_LOG_LEVEL": "3"}
    code, said, errors = (children or Children(_GRACE_S)).run(command, limit_s, environment)
    findings = _findings(said)
    if code is None:
        text = f"no answer within {limit_s:.0f} s"
        findings.append(fault(subject, text, cure or f"look why this hangs: {' '.join(command)}"))
    elif code and not any(each.state == "fault" for each in findings):
        last = [line for line in (said + errors).splitlines() if line.strip() and _MARK not in line][-1:]
        text = f"ended with exit code {code}: {''.join(last)[:300]}"
        findings.append(fault(subject, text, cure or f"look why this fails: {' '.join(command)}"))
    return findings


def report(finding: Finding) -> None:
    """Prints a finding for the process that runs this one."""
    print(_MARK + json.dumps(asdict(finding)), flush=True)


def _findings(output: str) -> list[Finding]:
    # A launcher may put the number of the rank in front.
    parts = [line.partition(_MARK)[2] for line in output.splitlines() if _MARK in line]
    return [Finding(**json.loads(part)) for part in parts]


if __name__ == "__main__":
    for each in PROBES[sys.argv[1]]():
        report(each)
