"""Ranks that die: the job ends at once and names them, whoever notices it first."""

import pytest

from tests.faults.support import IMPORTS, START, check_quoted, run, tfddlrun
from tests.harness import slow
from tests.harness.mpirun import mpirun_command

KILL = "os.kill(os.getpid(), signal.SIGKILL)"

KILLED_FIRST = f"""
pids = hvd.allgather(tf.constant([os.getpid()])).numpy()
if hvd.rank() == 1: {KILL}
while os.path.exists(f"/proc/{{pids[1]}}"): time.sleep(0.01)  # or they leave in good order while it is still there
"""


@pytest.mark.parametrize(
    "script",
    [
        slow(IMPORTS + f"if os.environ['OMPI_COMM_WORLD_RANK'] == '1': {KILL}\nhvd.init()\n"),
        IMPORTS + f"from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: time.sleep(1); {KILL}\nhvd.init()\n",
        START + f"if hvd.rank() == 1: {KILL}\nhvd.allreduce(x, name='alone')\nprint('not reached')\n",
        slow(START + f"if hvd.rank() == 1: {KILL}\n"),
    ],
    ids=["before init", "while others are in init", "in training", "at shutdown"],
)
def test_killed_under_tfddlrun(script):
    result = run(2, script, tfddlrun(2))
    assert result.code == 137, result.output
    assert result.output.rstrip().splitlines()[-1] == "tfddlrun: rank 1 was killed by signal 9 (SIGKILL)"


@pytest.mark.parametrize(
    "rest",
    [
        "hvd.allreduce(x, name='alone')\nprint('not reached')",
        slow("hvd.shutdown()"),
        slow(""),
    ],
)
def test_a_death_that_mpirun_does_not_see(rest):
    """A shell that goes on after its program hides the end from mpirun; the other ranks see it."""
    script = START + KILLED_FIRST + rest
    launcher = [*mpirun_command(3, ["sh", "-c", '"$@"; sleep 60', "sh"])]
    result = run(3, script, launcher)
    assert result.code != 0, result.output
    check_quoted(result, "rank 1 has died: its process ", " ended without leaving the job")
