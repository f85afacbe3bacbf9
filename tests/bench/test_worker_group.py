"""The workers of one adapter, without `tfddl bench`."""

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfddl.bench.adapters import OWN
from tfddl.bench.case import Case
from tfddl.bench.worker_group import WorkerGroup


def state(process: int) -> str:
    """The kernel's letter for the state of a process."""
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]


def wait_until_stopped(processes: list[int]) -> None:
    """The signal reaches a process a moment after it was sent."""
    deadline = time.monotonic() + 10
    while any(state(process) != "T" for process in processes):
        assert time.monotonic() < deadline, [state(process) for process in processes]
        time.sleep(0.01)


@pytest.mark.parametrize("restless", [True, False])
def test_ranks_that_do_not_rest_are_stopped_between_their_turns(restless):
    job = WorkerGroup(dataclasses.replace(OWN["copy"], restless=restless), 2)
    try:
        processes = job._processes
        assert len(set(processes)) == 2
        for turn in (
            lambda: True,
            lambda: job.prepare(Case("allreduce", 2, 64)),
            lambda: job.block(3)[1] == 0,
        ):
            assert turn()
            if restless:
                wait_until_stopped(processes)
            else:
                assert {state(process) for process in processes}.isdisjoint("T")
    finally:
        job.close()
    assert not any(Path(f"/proc/{process}").exists() for process in processes)


def test_nothing_is_left_of_a_driver_that_is_killed():
    """Stopped workers end too."""
    script = """
import dataclasses
import time
from tfddl.bench.adapters import OWN
from tfddl.bench.worker_group import WorkerGroup
job = WorkerGroup(dataclasses.replace(OWN["copy"], restless=True), 2)
print(*job._processes, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as driver:
        processes = [int(process) for process in driver.stdout.readline().split()]
        wait_until_stopped(processes)
        driver.kill()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{process}").exists() for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.1)
