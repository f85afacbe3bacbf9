"""The lab for a test, or the reason why there is none."""

import subprocess
from pathlib import Path

import pytest

from tests.harness.mpirun import is_open_mpi
from tfddl.bench.lab import lab_command


def lab_or_skip(directory: Path, rate: str = "-", delay: str = "", hosts: int = 2) -> list[str]:
    """The words in front of a command for host A; skips the test where the lab cannot be built."""
    lab = lab_command(directory, rate, delay, hosts)
    probe = subprocess.run([*lab, "true"], capture_output=True, text=True, timeout=120)
    if probe.returncode != 0:
        pytest.skip(f"no hosts without user and network namespaces, and TAP: {probe.stderr.strip()[-300:]}")
    return lab


def job_lab_or_skip(directory: Path, rate: str = "-", delay: str = "", hosts: int = 2) -> list[str]:
    """As `lab_or_skip`, for jobs of several hosts."""
    if not is_open_mpi():
        pytest.skip("the stand-in for ssh is Open MPI's")
    return lab_or_skip(directory, rate, delay, hosts)
