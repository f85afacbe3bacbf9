"""A process that a rank forks ends as it likes, and leaves the job alone."""

import pytest

from tests.faults.support import START, check_quoted, run, tfddlrun
from tests.harness import long

FORKS = """
def forked(what):
    pid = os.fork()
    if pid == 0:
        what()
        raise SystemExit  # up to the end of the program, as any other
    end = time.monotonic() + 60
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return "hangs"
"""

ENDS = """
def fails():
    raise ValueError("planted")

codes = [forked(what) for what in (lambda: None, lambda: sys.exit(5), fails)]
assert codes == [0, 5, 1], codes
for _ in range(20):
    assert hvd.allreduce(x, op=hvd.Sum)[0] == hvd.size()
print("lives on")
"""

CALLS = """
def caught(call):
    try:
        call()
    except RuntimeError as error:
        print("refused:", error)
    else:
        print("not reached")

def calls():
    assert hvd.size() == 2 and hvd.rank() in (0, 1)
    caught(lambda: hvd.allreduce(x))
    hvd.shutdown()
    caught(hvd.init)

assert forked(calls) == 0
assert hvd.allreduce(x, op=hvd.Sum)[0] == hvd.size()
print("lives on")
"""


@pytest.mark.slow
def test_without_other_ranks():
    result = run(1, START + FORKS + ENDS)
    assert result.code == 0, result.output
    assert "lives on" in result.output


@pytest.mark.parametrize(
    "first",
    ["", long("from mpi4py import MPI\n")],
    ids=["", "mpi4py imported first"],
)
def test_every_end_of_a_forked_process(first):
    """And what a call of ours says in it."""
    result = run(2, first + START + FORKS + ENDS + CALLS, tfddlrun(2))
    assert result.code == 0, result.output
    check_quoted(result, "refused: allreduce needs a rank", "refused: init needs a rank", "forked from")
    assert result.output.count("lives on") == 4, result.output


def test_a_process_that_a_rank_starts():
    """`multiprocessing` by spawn runs the script again, with `hvd.init()` in it. A job of its own is another thing."""
    script = (
        START
        + """
import subprocess
if hvd.rank() == 0:
    child = subprocess.run([sys.executable, "-c", "import tfddl; tfddl.init()"], capture_output=True, text=True)
    print("child:", child.returncode, child.stderr.strip().splitlines()[-1])
    own = "import tfddl; tfddl.init(); print('own job of', tfddl.size())"
    job = [sys.executable, "-m", "tfddl.launch.run", "-np", "2", sys.executable, "-c", own]
    print(subprocess.run(job, capture_output=True, text=True).stdout)
assert hvd.allreduce(x, op=hvd.Sum)[0] == hvd.size()
"""
    )
    result = run(2, script, tfddlrun(2))
    assert result.code == 0, result.output
    check_quoted(result, "child: 1 RuntimeError: init needs a rank", "started by rank process")
    assert result.output.count("own job of 2") == 2, result.output
