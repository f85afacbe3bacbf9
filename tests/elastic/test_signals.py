"""Signals to tfddlrun in an elastic job, without TensorFlow."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.launch.support import running, tfddlrun

# Each rank dies when its file is there. No rank listens to SIGTERM, so that tfddlrun waits for a rank that is left.
PROGRAM = """
import os, signal, sys, time
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")))
os.makedirs(os.environ["TFDDL_COMMITS"], exist_ok=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", os.environ["TFDDL_COMMITS"], flush=True)
while not os.path.exists(f"{sys.argv[1]}/{rank}"):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def job(tmp_path):
    """A job of two ranks that run, and the folder of its commits."""
    options = ["--elastic", "--replace", "--verbose", "-np", "2"]
    with running([*options, sys.executable, "-c", PROGRAM, str(tmp_path)]) as job:
        lines = [job.process.stdout.readline().decode().split() for _ in range(2)]
        job.commits = Path(lines[0][-1])
        yield job


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_a_loss_prevents_the_restart(job, tmp_path, number):
    (tmp_path / "1").touch()
    job.read_errors_until("rank 1 ended with status -9")
    job.process.send_signal(number)
    ended = job.finish()
    assert ended.code == 137
    assert "starting again" not in ended.stderr
    assert ended.last_line == "tfddlrun: rank 1 was killed by signal 9 (SIGKILL)"
    assert not job.commits.exists()


def test_a_signal_between_two_starts_ends_the_job(job, tmp_path):
    """The ranks die at once, so that tfddlrun waits longer before each start."""
    for rank in "01":
        (tmp_path / rank).touch()
    job.read_errors_until(" in 2 s")
    job.process.send_signal(signal.SIGINT)
    ended = job.finish()
    assert ended.code == 130 and ended.last_line == "tfddlrun: stopped by signal 2 (SIGINT)"


def test_commits_do_not_outlive_a_killed_tfddlrun(job):
    assert job.commits.is_dir()
    os.kill(job.process.pid, signal.SIGKILL)
    assert not job.leftovers(60.0)
    assert not job.commits.exists()


def test_two_jobs_do_not_share_a_folder(tmp_path):
    (tmp_path / "state").mkdir()
    command = ["--elastic", "--state-dir", str(tmp_path / "state"), "-np", "1", sys.executable, "-c"]
    with running([*command, "import time; print('up', flush=True); time.sleep(500)"]) as first:
        assert first.process.stdout.readline() == b"[0] up\n"
        second = tfddlrun(*command, "pass")
        assert second.code == 2
        assert "Another job keeps its commits there: choose another folder. Received: " in second.stderr
        first.process.send_signal(signal.SIGINT)
    assert tfddlrun(*command, "pass").code == 0


STOPPED = """
import os, signal, sys, time
rank, size = (int(os.environ.get(f"OMPI_COMM_WORLD_{n}", os.environ.get(f"PMI_{n}"))) for n in ("RANK", "SIZE"))
if size == 1:
    sys.exit(0)
if rank == 1:
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    os.kill(os.getpid(), signal.SIGSTOP)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
while open(f"/proc/{open(sys.argv[1]).read()}/stat").read().rpartition(") ")[2][0] != "T":
    time.sleep(0.01)
sys.exit("rank 1 is silent")
"""


def test_a_stopped_rank_is_lost_once_another_gives_up(tmp_path):
    """As after TFDDL_STALL_LIMIT."""
    ended = tfddlrun("--elastic", "-np", "2", sys.executable, "-c", STOPPED, str(tmp_path / "stopped"))
    assert ended.code == 0, ended.stderr
    assert "rank 1 is silent" in ended.stderr
    assert ended.last_line == "tfddlrun: the job has ended well, though rank 1 of 2 was lost"
