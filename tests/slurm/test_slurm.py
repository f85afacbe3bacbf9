"""tfddlrun, srun and the recipe of deploy/ under a real Slurm."""

import subprocess
import sys

import pytest

from tests.harness.job import REPOSITORY, SEARCH_PATH
from tests.launch.support import environment_for_recipes
from tests.slurm.cluster import cluster, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

TFDDLRUN = [sys.executable, "-m", "tfddl.launch.run"]
WHERE = ["sh", "-c", "echo $SLURMD_NODENAME"]
SUM = """
import tfddl as hvd
hvd.init()
print("sum", hvd.allreduce(hvd.rank() + 1.0, op=hvd.Sum).numpy(), "of", hvd.size())
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Runs a command of Slurm to its end."""
    with cluster(tmp_path_factory.mktemp("slurm")) as environment:

        def run(*command, **options):
            given = {**environment, "PYTHONPATH": SEARCH_PATH} | options.pop("env", {})
            limited = ["timeout", "-k", "10", "200", *map(str, command)]
            return subprocess.run(limited, env=given, capture_output=True, text=True, **options)

        yield run


@pytest.mark.parametrize(
    ("asked", "first_line", "nodes"),
    [
        (
            ["-N", "2", "-n", "3"],
            "3 processes (2 on node1, 1 on node2), by the tasks of Slurm (SLURM_NTASKS=3)",
            ["node1", "node1", "node2"],
        ),
        (
            ["-N", "2", "--ntasks-per-node=2"],
            "4 processes (2 on node1, 2 on node2), by the tasks of Slurm (SLURM_NTASKS=4)",
            ["node1", "node1", "node2", "node2"],
        ),
    ],
)
def test_tasks_of_an_allocation(slurm, asked, first_line, nodes):
    done = slurm("salloc", "-Q", *asked, *TFDDLRUN, *WHERE)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"tfddlrun: {first_line}\n"
    assert sorted(line.split()[1] for line in done.stdout.splitlines()) == nodes


def test_a_number_of_processes(slurm):
    """With -np mpirun takes the hosts of the allocation."""
    done = slurm("salloc", "-Q", "-N", "2", "-n", "2", *TFDDLRUN, "-np", "2", *WHERE)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["[0] node1", "[1] node2"]


def test_an_allocation_without_tasks(slurm):
    done = slurm("salloc", "-Q", "-N", "2", *TFDDLRUN, *WHERE, env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2
    assert "This job of Slurm has asked neither for tasks nor for GPUs" in done.stderr
    many = slurm("srun", "-n", "2", *TFDDLRUN, *WHERE)
    assert many.returncode == 2
    assert "A launcher has started tfddlrun several times" in many.stderr


def test_srun_with_and_without_an_mpi_plugin(slurm):
    # On one node: the files of PMIx would clash, since both daemons have this machine's /tmp.
    joined = slurm("srun", "--mpi=pmix", "-N", "1", "-n", "2", sys.executable, "-c", SUM)
    assert joined.returncode == 0, joined.stderr
    assert joined.stdout.splitlines() == ["sum 3.0 of 2"] * 2
    # Open MPI 5 does not speak PMI-2, and takes each process for a job of its own.
    alone = slurm("srun", "--mpi=pmi2", "-n", "2", sys.executable, "-c", SUM)
    assert alone.returncode == 1
    assert "A launcher started 2 processes" in alone.stderr


def test_the_recipe(slurm, tmp_path):
    """The batch script of deploy/, with a task on each of the two nodes."""
    (tmp_path / "train.py").write_text(SUM)
    recipe = REPOSITORY / "deploy" / "slurm.sbatch"
    done = slurm(
        "sbatch", "--wait", "--ntasks-per-node=1", recipe, "train.py",
        cwd=tmp_path, env={"VENV": str(environment_for_recipes(tmp_path))},
    )  # fmt: skip
    (output,) = tmp_path.glob("tfddl-*.out")
    text = output.read_text()
    assert done.returncode == 0, text
    assert "tfddlrun: 2 processes (1 on node1, 1 on node2), by the tasks of Slurm (SLURM_NTASKS=2)\n" in text
    assert "[0] sum 3.0 of 2\n" in text and "[1] sum 3.0 of 2\n" in text
