"""Timelines of jobs that fail, recorded by tfddlrun's option."""

import subprocess
import sys

from tests.faults.support import START, run, tfddlrun
from tests.harness.job import REPOSITORY
from tfddl.runtime.timeline import rank_path
from tfddl.timeline.trace import read

KILLED = (
    START
    + """
for number in range(3): hvd.allreduce(x, name=f"together.{number}")
if hvd.rank() == 0: time.sleep(1000)
threading.Thread(target=hvd.allreduce, args=(x,), kwargs={"name": "alone"}, daemon=True).start()
path = os.environ["TFDDL_TIMELINE"].replace(".json", ".rank1.json")
while '"in flight"' not in open(path).read().partition("alone")[2]: time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
)

RAISED = (
    START
    + """
if hvd.rank() == 1:
    while "alone" not in open(os.environ["TFDDL_TIMELINE"]).read(): time.sleep(0.01)
    sys.exit(3)
hvd.allreduce(x, name="alone")
"""
)


FORKED = (
    START
    + """
hvd.allreduce(x, name="before")
pid = os.fork()
if pid == 0:
    for call in (lambda: hvd.start_timeline("child.json"), hvd.stop_timeline):
        try:
            call()
        except RuntimeError as error:
            assert "forked" in str(error), error
        else:
            os._exit(1)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
hvd.allreduce(x, name="after")
"""
)


def start(tmp_path, script):
    path = tmp_path / "timeline.json"
    return path, run(2, script, [*tfddlrun(2), "--timeline-filename", str(path)])


def test_a_killed_rank_leaves_what_it_last_did(tmp_path):
    path, result = start(tmp_path, KILLED)
    assert result.code == 137, result.output
    trace = read(tmp_path / "timeline.rank1.json")
    assert not trace.whole
    assert [request.name for request in trace.open()] == ["alone"]
    assert sum(request.name.startswith("together.") for request in trace.requests) == 3
    command = [sys.executable, "-m", "tfddl.cli", "timeline", str(path)]
    said = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=True
    ).stdout
    assert "rank 1: the file has no end; the process was killed, or still runs" in said
    assert "rank 1 ends with 'alone' (waiting for peers for " in said


def test_a_rank_that_ends_the_job_writes_all(tmp_path):
    path, result = start(tmp_path, RAISED)
    assert result.code == 3, result.output
    assert read(tmp_path / "timeline.rank1.json").whole
    assert "alone" in [request.name for request in read(path).requests]


def test_a_forked_process_leaves_the_file_alone(tmp_path):
    path, result = start(tmp_path, FORKED)
    assert result.code == 0, result.output
    for rank in (0, 1):
        trace = read(rank_path(path, rank))
        assert trace.whole and not trace.open()
        assert [request.name for request in trace.requests if request.name in ("before", "after")] == [
            "before",
            "after",
        ]
