"""A job of size 1 where a launcher started several processes. The variables of Slurm are those of Slurm 22.05 itself."""

import sys

import pytest

from tests.harness import run_script
from tfddl.runtime import launcher_check
from tfddl.runtime.launcher_check import unexpected_single

TASK = "418"
STEP = {
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_TASK_PID": TASK,
}
STEP_OF_1 = STEP | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
SALLOC = {"SLURM_JOB_ID": "4", "SLURM_JOB_NAME": "interactive", "SLURM_NTASKS": "2", "SLURM_NPROCS": "2"}
SBATCH = SALLOC | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_GTIDS": "0", "SLURM_TASK_PID": TASK}
ARRAY = SBATCH | {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "2"}
INTERACTIVE_STEP = STEP_OF_1 | {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "4294967290"}
MPIRUN_OF_1 = {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}
HYDRA_OF_1 = {"PMI_SIZE": "1", "PMI_RANK": "0", "MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0"}


@pytest.fixture(autouse=True)
def no_processes(monkeypatch, tmp_path):
    monkeypatch.setattr(launcher_check, "_PROC", tmp_path)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        SALLOC,
        SBATCH,
        ARRAY,
        INTERACTIVE_STEP,
        INTERACTIVE_STEP | {"SLURM_STEP_NUM_TASKS": "2"},
        STEP | {"SLURM_STEP_ID": "4294967291"},
        STEP_OF_1,
        MPIRUN_OF_1,
        HYDRA_OF_1,
        STEP | MPIRUN_OF_1,
        STEP | HYDRA_OF_1,
        STEP | {"WORLD_SIZE": "2", "RANK": "0"} | MPIRUN_OF_1,
        STEP | {"TFDDL_ALLOW_SINGLE": "1"},
        {"SLURM_STEP_NUM_TASKS": "2"},
        {"PMI_SIZE": "2"},
        {"PMIX_RANK": "1"},
        {"WORLD_SIZE": "2"},
        {"WORLD_SIZE": "2", "PMI_RANK": "1"},
        {"WORLD_SIZE": "auto", "RANK": "0"},
    ],
)
def test_a_job_of_size_1(environment):
    assert unexpected_single(environment) is None


@pytest.mark.parametrize(
    ("environment", "quoted"),
    [
        (STEP, "SLURM_STEP_NUM_TASKS=2, SLURM_PROCID=1"),
        (ARRAY | STEP, "SLURM_STEP_NUM_TASKS=2, SLURM_PROCID=1"),
        (STEP | {"TFDDL_ALLOW_SINGLE": "0"}, "SLURM_STEP_NUM_TASKS=2, SLURM_PROCID=1"),
        (STEP | {"WORLD_SIZE": "1", "RANK": "0"}, "SLURM_STEP_NUM_TASKS=2, SLURM_PROCID=1"),
        (
            STEP | {"PMI_SIZE": "2", "PMI_RANK": "1"},
            "PMI_SIZE=2, PMI_RANK=1, SLURM_STEP_NUM_TASKS=2, SLURM_PROCID=1",
        ),
    ],
)
def test_a_step_of_slurm_without_mpi(environment, quoted):
    text = unexpected_single(environment)
    assert "this is number 1" in text
    assert "srun --mpi=pmix -n 2 python train.py" in text
    assert "tfddlrun -np 2 python train.py" in text
    assert text.endswith(f"Received: {quoted}")


@pytest.mark.parametrize(
    ("size", "rank"),
    [
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("PMI_SIZE", "PMI_RANK"),
        ("PMIX_SIZE", "PMIX_RANK"),
        ("PALS_SIZE", "PALS_RANKID"),
        ("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
        ("MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
        ("WORLD_SIZE", "RANK"),
    ],
)
def test_another_launcher(size, rank):
    text = unexpected_single(SBATCH | {size: "3", rank: "2"})
    assert "tfddlrun -np 3 python train.py" in text
    assert "srun" not in text
    assert text.endswith(f"Received: {size}=3, {rank}=2")


@pytest.mark.parametrize(
    ("title", "terminal", "alone"),
    [
        ("slurmstepd: [4.0]", 0, False),
        ("slurmstepd: [4.0]", 34817, True),  # srun --pty -n 2 bash
        ("slurmstepd: [4.batch]", 0, True),  # submitted from within a step, whose variables it has
        ("bash", 34817, False),  # the number is that of another process, in another container
    ],
)
def test_what_slurm_started(title, terminal, alone, tmp_path):
    for process, name, text in (
        (TASK, "stat", f"{TASK} (b) h) S 414 1 1 {terminal} 0"),
        ("414", "cmdline", title),
    ):
        (tmp_path / process).mkdir()
        (tmp_path / process / name).write_text(text)
    assert (unexpected_single(STEP) is None) is alone


def test_processes_of_srun():
    script = """
        import os
        import tfddl as hvd

        hvd.init(comm=[0])
        hvd.shutdown()
        os.environ["TFDDL_ALLOW_SINGLE"] = "1"
        hvd.init()
        assert hvd.size() == 1
        hvd.shutdown()
        del os.environ["TFDDL_ALLOW_SINGLE"]
        print("not yet")
        hvd.init()
        print("trains")
    """
    result = run_script(0, script, environment=STEP)
    assert result.code == 1, result.output
    assert "not yet" in result.output
    assert "trains" not in result.output
    assert "RuntimeError: A launcher started 2 processes, this is number 1" in result.output


def test_one_rank_of_tfddlrun_inside_a_step():
    result = run_script(
        0,
        "import tfddl as hvd\nhvd.init()\nprint(hvd.size())",
        environment=STEP,
        launcher=[sys.executable, "-m", "tfddl.launch.run", "-np", "1"],
    )
    assert result.code == 0, result.output
    assert "1\n" in result.output
