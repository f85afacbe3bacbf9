"""How many processes tfddlrun starts where, if nobody says so: variables of Slurm, PBS and LSF, then GPUs."""

import os

import pytest

from tests.launch.support import runner, tfddlrun
from tfddl.launch import allocation, gpus, run, slurm
from tfddl.launch.allocation import NoChoiceError, choose, hosts_for_mpirun
from tfddl.launch.gpus import local_gpus
from tfddl.launch.hosts import Host

# As Slurm 22.05 sets them.
SALLOC = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}
TASKS = SALLOC | {"SLURM_NTASKS": "3", "SLURM_NPROCS": "3", "SLURM_TASKS_PER_NODE": "2,1"}
ONE_TASK_OF_SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_TASKS_PER_NODE": "1",
}
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(autouse=True)
def no_programs(monkeypatch):
    """No scontrol and no nvidia-smi of this machine."""
    monkeypatch.setenv("PATH", "/nonexistent")


def chosen(environment):
    choice = choose(environment)
    return {host.name: host.slots for host in choice.hosts}, choice.source


@pytest.mark.parametrize(
    ("environment", "hosts", "source"),
    [
        (TASKS, {"n1": 2, "n2": 1}, "the tasks of Slurm (SLURM_NTASKS=3)"),
        # Submitted from within a step of another job.
        (
            ONE_TASK_OF_SRUN | SALLOC | {"SLURM_GPUS_ON_NODE": "2"},
            {"n1": 2, "n2": 2},
            "the GPUs that Slurm gives on each of its 2 hosts (SLURM_GPUS_ON_NODE=2)",
        ),
        (
            {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_NTASKS": "1", "SLURM_GPUS_ON_NODE": "4"},
            {"n1": 1},
            "the tasks of Slurm (SLURM_NTASKS=1); for its 4 GPUs: tfddlrun -np 4, or sbatch --ntasks=4",
        ),
        (TASKS | {"SLURM_GPUS_ON_NODE": "8"}, {"n1": 2, "n2": 1}, "the tasks of Slurm (SLURM_NTASKS=3)"),
        (
            TASKS | {"SLURM_TASKS_PER_NODE": "40(x2)"},
            {"n1": 2, "n2": 1},
            "the tasks of Slurm (SLURM_NTASKS=3)",
        ),
        (
            SALLOC | {"SLURM_NTASKS_PER_NODE": "4"},
            {"n1": 4, "n2": 4},
            "the tasks of Slurm (SLURM_NTASKS_PER_NODE=4)",
        ),
        (
            SALLOC | {"SLURM_GPUS_ON_NODE": "4"},
            {"n1": 4, "n2": 4},
            "the GPUs that Slurm gives on each of its 2 hosts (SLURM_GPUS_ON_NODE=4)",
        ),
        (
            SALLOC | {"SLURM_GPUS_PER_NODE": "a100:2,v100:1"},
            {"n1": 3, "n2": 3},
            "the GPUs that Slurm gives on each of its 2 hosts (SLURM_GPUS_PER_NODE=a100:2,v100:1)",
        ),
        (
            SALLOC | {"SLURM_GPUS": "8"},
            {"n1": 4, "n2": 4},
            "the GPUs that Slurm gives on each of its 2 hosts (SLURM_GPUS=8)",
        ),
        (
            ONE_TASK_OF_SRUN | {"SLURM_JOB_GPUS": "0,3"},
            {"n1": 2},
            "the GPUs that Slurm gives on its host (SLURM_JOB_GPUS=0,3)",
        ),
        (
            {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "b1 2 b2 1"},
            {"b1": 2, "b2": 1},
            "the tasks of LSF (LSB_MCPU_HOSTS)",
        ),
        (
            {"CUDA_VISIBLE_DEVICES": "0,1"},
            {"localhost": 2},
            "the GPUs of this host (CUDA_VISIBLE_DEVICES=0,1)",
        ),
    ],
)
def test_chooses(environment, hosts, source):
    assert chosen(NO_GPU | environment) == (hosts, source)


@pytest.mark.parametrize(
    "more",
    [{}, {"SLURM_GPUS_ON_NODE": "1"}, {"SLURM_GPUS_ON_NODE": "2"}, {"CUDA_VISIBLE_DEVICES": "0,1"}],
    ids=str,
)
def test_hosts_with_different_numbers_of_gpus(monkeypatch, more):
    """Slurm tells the total and the GPUs of this host, not those of the others."""
    monkeypatch.setattr(allocation, "all_local", lambda _: True)
    with pytest.raises(NoChoiceError, match=r"as in -H n1:1,n2:1, or .* Received: SLURM_GPUS=3 for n1, n2"):
        choose(NO_GPU | SALLOC | {"SLURM_GPUS": "3"} | more)


SHOW_JOB = """#!/bin/sh
[ "$*" = '-d show job 7' ] && cat << 'END'
JobId=7 JobName=train
   NodeList=n[1-4] BatchHost=n1 NumNodes=4 NumCPUs=10 NumTasks=4
   TRES=cpu=10,node=4,gres/gpu=6
   JOB_GRES=gpu:a100:5,gpu:v100:1
     Nodes=n1 CPU_IDs=0-3 Mem=0 GRES=gpu:a100:1(IDX:0),gpu:v100:1(IDX:4)
     Nodes=n[2-3] CPU_IDs=0-1 Mem=64000 GRES=gpu:a100:2(IDX:0,3)
     Nodes=n4 CPU_IDs=0-1 Mem=64000 GRES=
END
"""


@pytest.mark.parametrize("more", [{}, {"SLURM_GPUS_ON_NODE": "2"}, {"SLURM_GPUS": "6"}], ids=str)
def test_scontrol_tells_the_gpus_of_each_host(tmp_path, monkeypatch, more):
    program = tmp_path / "scontrol"
    program.write_text(SHOW_JOB)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    environment = NO_GPU | SALLOC | {"SLURM_JOB_NODELIST": "n[1-4]"} | more
    source = "the GPUs that Slurm gives on each host (scontrol -d show job 7)"
    assert chosen(environment) == ({"n1": 2, "n2": 2, "n3": 2}, source)


@pytest.mark.parametrize(
    ("old", "new"),
    [("Nodes=n[2-3]", "Nodes=n2"), ("=gpu:", "=fpga:")],
    ids=["not of all hosts", "no GPU"],
)
def test_scontrol_tells_nothing_of_gpus(tmp_path, monkeypatch, old, new):
    program = tmp_path / "scontrol"
    program.write_text(SHOW_JOB.replace(old, new).replace(",gpu:v100:1(IDX:4)", ""))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    environment = NO_GPU | SALLOC | {"SLURM_JOB_NODELIST": "n[1-4]"}
    with pytest.raises(NoChoiceError, match="asked neither for tasks nor for GPUs"):
        choose(environment)
    assert chosen(environment | {"SLURM_GPUS": "8"})[1].endswith(" on each of its 4 hosts (SLURM_GPUS=8)")


def test_files_of_hosts(tmp_path):
    file = tmp_path / "nodes"
    file.write_text("p1\np1\np2\np2\n")
    assert chosen({"PBS_NODEFILE": str(file)}) == (
        {"p1": 2, "p2": 2},
        f"the tasks of PBS (PBS_NODEFILE={file})",
    )
    assert chosen({"LSB_JOBID": "7", "LSB_DJOB_HOSTFILE": str(file)})[0] == {"p1": 2, "p2": 2}
    # One line for each host says nothing of tasks where there are GPUs. They are seen on a host of the job alone.
    here = os.uname().nodename
    file.write_text(f"{here}\np2\n")
    gpus = {"PBS_NODEFILE": str(file), "CUDA_VISIBLE_DEVICES": "0,1,2"}
    assert chosen(gpus) == (
        {here: 3, "p2": 3},
        "the GPUs that PBS gives on each of its 2 hosts (CUDA_VISIBLE_DEVICES=0,1,2)",
    )
    assert chosen(gpus | NO_GPU)[0] == {here: 1, "p2": 1}
    file.write_text("")
    with pytest.raises(ValueError, match=f"Received: {file}, which is empty"):
        choose({"PBS_NODEFILE": str(file)})
    with pytest.raises(ValueError, match="cannot read the scheduler's list of hosts"):
        choose({"PBS_NODEFILE": "/nonexistent"})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "Say how many processes to start: tfddlrun -np 2 python train.py"),
        (SALLOC, "asked neither for tasks nor for GPUs.*sbatch --ntasks-per-node=2.*Received: n1, n2"),
        (ONE_TASK_OF_SRUN, "asked neither for tasks nor for GPUs.*Received: n1$"),
        (
            ONE_TASK_OF_SRUN | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"},
            "A launcher has started tfddlrun several times",
        ),
        ({"WORLD_SIZE": "4", "RANK": "1"}, "A launcher has started tfddlrun several times"),
    ],
)
def test_says_what_to_pass(environment, message):
    with pytest.raises(NoChoiceError, match=message):
        choose(NO_GPU | environment)


def test_hosts_for_a_number_of_processes(tmp_path):
    """mpirun knows Slurm; it is told the hosts of PBS and LSF if there are several."""
    file = tmp_path / "nodes"
    file.write_text("p1\np1\np2\n")
    assert hosts_for_mpirun({"PBS_NODEFILE": str(file)}) == [Host("p1", 2), Host("p2", 1)]
    file.write_text("p1\np1\n")
    assert (
        hosts_for_mpirun({"PBS_NODEFILE": str(file)}) == hosts_for_mpirun(TASKS) == hosts_for_mpirun({}) == []
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("node[01-03,7],x", ["node01", "node02", "node03", "node7", "x"]),
        ("a[1-2]b[08-09]-ib,c", ["a1b08-ib", "a1b09-ib", "a2b08-ib", "a2b09-ib", "c"]),
    ],
)
def test_lists_of_slurm(text, names):
    assert slurm.expand(text) == names


def test_malformed_list_of_slurm():
    with pytest.raises(ValueError, match=r"looks like node\[01-03,7\],login: .* Received: n\[1-"):
        slurm.expand("n[1-")
    with pytest.raises(ValueError, match=r"Received: n\[a-b\]"):
        slurm.expand("n[a-b]")


def test_scontrol_expands_first(tmp_path, monkeypatch):
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\n[ "$1 $2" = "show hostnames" ] && echo "of $3" && echo two\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm.expand("n[1-2]") == ["of", "n[1-2]", "two"]
    program.write_text("#!/bin/sh\nexit 1\n")
    assert slurm.expand("n[1-2]") == ["n1", "n2"]


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        ("0", 1),
        ("0,1,2", 3),
        ("", 0),
        ("-1", 0),
        ("0,-1,2", 1),
        ("NoDevFiles", 0),
        ("GPU-8a1,MIG-GPU-8/1/0", 2),
    ],
)
def test_visible_devices(visible, count):
    assert local_gpus({"CUDA_VISIBLE_DEVICES": visible})[0] == count


def test_gpus_without_a_variable(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    assert local_gpus({})[0] == 0
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'GPU 0: A100 (UUID: GPU-1)'\necho '  MIG 1g: (UUID: MIG-1)'\necho 'GPU 1: A100'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert local_gpus({}) == (2, "nvidia-smi -L")
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert local_gpus({}) == (3, f"{tmp_path}/nvidia*")


def test_the_choice_is_printed_and_goes_to_mpirun(monkeypatch):
    monkeypatch.setattr(run.os, "environ", TASKS | {"PATH": os.defpath})
    result = runner().invoke(run.main, ["--dry-run", "true"])
    assert (
        result.stderr == "tfddlrun: 3 processes (2 on n1, 1 on n2), by the tasks of Slurm (SLURM_NTASKS=3)\n"
    )
    assert "n1:2,n2:1" in result.stdout and "TFDDL_LAUNCH" in result.stdout


def test_many_hosts_are_not_all_printed():
    choice = allocation.Choice([Host(f"n{index}", 8) for index in range(64)], "x")
    assert str(choice) == "512 processes (8 on n0, 8 on n1, 8 on n2, 8 on n3, ... (64 hosts)), by x"


def test_a_job_with_the_slots_of_a_scheduler(tmp_path):
    """A real job; PBS_NODEFILE names this host twice."""
    (tmp_path / "nodes").write_text("localhost\nlocalhost\n")
    environment = {"PBS_NODEFILE": str(tmp_path / "nodes"), "PATH": os.defpath}
    job = tfddlrun("sh", "-c", "echo $OMPI_COMM_WORLD_SIZE$PMI_SIZE", env=environment)
    assert (job.code, sorted(job.stdout.splitlines())) == (0, ["[0] 2", "[1] 2"])
    assert job.stderr.startswith("tfddlrun: 2 processes (2 on localhost), by the tasks of PBS (PBS_NODEFILE=")
