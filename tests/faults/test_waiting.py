"""Waits that cannot end: who waits for what is said early, and the limit ends them."""

import re

import pytest

from tests.faults.support import IMPORTS, check_quoted, run, start
from tests.harness import slow

DIFFERENT = "the ranks wait for different collectives, none of which can run"


@pytest.mark.parametrize("ranks", [slow(2), 3])
def test_ranks_that_wait_for_different_collectives(ranks):
    """As in fit with unequal numbers of steps: said after a sixth of the warning's time."""
    script = (
        start(warning=6, limit=5)
        + "hvd.allreduce(x, name='gradient' if hvd.rank() == 0 else 'metric')\nprint('not reached')\n"
    )
    result = run(ranks, script)
    assert result.code != 0, result.output
    others = "rank 1" if ranks == 2 else "ranks 1, 2"
    check_quoted(result, DIFFERENT, f"{others}: 'metric' (for ", "Stalled: rank ")
    assert re.search(rf"{DIFFERENT}: rank 0: 'gradient' \(for \d+ s\)", result.output)
    assert result.output.count(DIFFERENT) == 1
    assert "=5 seconds. To see the lines of the program: kill -USR1 PID (of tfddlrun), then" in result.output
    assert (
        "TFDDL_STALL_LIMIT=5 seconds. Run the same collectives on all ranks; set a higher limit"
        in result.output
    )


@pytest.mark.slow
def test_a_thread_that_submits_later_ends_such_a_wait():
    script = (
        start(warning=6)
        + f"""
def other():
    wait_until_said("{DIFFERENT}")
    hvd.allreduce(x, name="b" if hvd.rank() == 0 else "a")
thread = threading.Thread(target=other)
thread.start()
hvd.allreduce(x, name="a" if hvd.rank() == 0 else "b")
thread.join()
"""
    )
    result = run(2, script)
    assert result.code == 0, result.output
    check_quoted(result, DIFFERENT)


@pytest.mark.slow
def test_a_rank_that_is_slow_is_no_such_wait():
    script = start(warning=6) + "if hvd.rank() == 1: time.sleep(2)\nhvd.allreduce(x, name='a')\n"
    result = run(2, script)
    assert result.code == 0, result.output
    assert DIFFERENT not in result.output


def test_a_limit_of_0_is_none():
    script = start(limit=0) + "if hvd.rank() == 1: time.sleep(1)\nhvd.allreduce(x, name='a')\n"
    result = run(2, script)
    assert result.code == 0, result.output


def test_a_stopped_rank_that_goes_on():
    """SIGSTOP, as by a debugger or a batch system: it is silent, is waited for, and the job ends well."""
    script = (
        start(warning=1)
        + """
pids = hvd.allgather(tf.constant([os.getpid()]))
def go_on():
    wait_until_said("rank 1: no answer")
    os.kill(int(pids[1]), signal.SIGCONT)
if hvd.rank() == 0:
    os.kill(int(pids[1]), signal.SIGSTOP)
    threading.Thread(target=go_on).start()
hvd.allreduce(x, name="after")
"""
    )
    result = run(2, script)
    assert result.code == 0, result.output
    check_quoted(
        result, "for 'after'; rank 1 does not answer", "rank 1: no answer (dead, stopped or unreachable)"
    )


@pytest.mark.slow
def test_a_stopped_rank_at_shutdown():
    script = (
        start(warning=1.2, limit=6)
        + """
pids = hvd.allgather(tf.constant([os.getpid()]))
if hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
while open(f"/proc/{int(pids[1])}/stat").read().rpartition(") ")[2][0] != "T":
    time.sleep(0.01)
"""
    )
    result = run(2, script)
    assert result.code != 0, result.output
    check_quoted(
        result, "rank 0 has shut down tfddl, and not all other ranks have answered", "rank 1: no answer"
    )


@pytest.mark.parametrize(
    "mpi",
    ["", slow("from mpi4py import MPI")],
    ids=["before MPI_Init", "after MPI_Init"],
)
def test_a_rank_that_never_calls_init(mpi):
    script = f"""{IMPORTS}
{mpi}
rank = os.environ["OMPI_COMM_WORLD_RANK"]
if rank == "1": time.sleep(300)
# Imports take unequal times, and MPI cannot be asked yet.
open(os.environ["TMPDIR"] + "/imported." + rank, "x").close()
while not all(os.path.exists(os.environ["TMPDIR"] + "/imported." + other) for other in "02"):
    time.sleep(0.01)
hvd.init()
"""
    result = run(3, script, TFDDL_STALL_WARNING="2", TFDDL_STALL_LIMIT="5")
    assert result.code != 0, result.output
    missing = "s in hvd.init(); it has not been called by rank 1: call it on all ranks"
    warnings = [f"has waited {seconds} {missing}; waiting on" for seconds in (2, 4)]
    check_quoted(result, *warnings, f"has waited 5 {missing}. The limit is TFDDL_STALL_LIMIT=5")


def test_ranks_that_run_different_software():
    script = (
        IMPORTS
        + """
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    hvd.__version__ = "0.0.9"
hvd.init()
print("not reached")
"""
    )
    result = run(3, script)
    assert result.code != 0, result.output
    received = "Received: ranks 0, 2: tfddl 0.1.0; rank 1: tfddl 0.0.9"
    check_quoted(result, "ValueError: All ranks have to run the same software", received)
