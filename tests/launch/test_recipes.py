"""The recipes of deploy/: those for PBS and LSF run, with the variables of these schedulers; the others are read."""

import re
import subprocess

import pytest
import yaml
from click.testing import CliRunner

from tests.harness.job import REPOSITORY, SEARCH_PATH
from tests.launch.support import environment_for_recipes
from tfddl.launch import run

DEPLOY = REPOSITORY / "deploy"
PROGRAM = "import os, sys; print('trains with', sys.argv[1:], os.environ['MARK'])\n"


@pytest.mark.parametrize(
    "recipe", sorted(path for path in DEPLOY.iterdir() if path.is_file()), ids=lambda path: path.name
)
def test_says_for_whom(recipe):
    lines = [line for line in recipe.read_text().splitlines() if not line.startswith("#!")]
    assert lines[0].startswith("# For users of ") and len(lines) < 80


@pytest.mark.parametrize("scheduler", ["pbs", "lsf"])
def test_batch_scripts_run(scheduler, tmp_path, monkeypatch):
    """On two slots of this host."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "nodes").write_text("localhost\nlocalhost\n")
    variables = {
        "pbs": {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_O_WORKDIR": str(tmp_path)},
        "lsf": {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "localhost 2"},
    }[scheduler]
    variables |= {"VENV": str(environment_for_recipes(tmp_path)), "PYTHONPATH": SEARCH_PATH}
    variables |= {"ARGUMENTS": "train.py --epochs 3", "TFDDLRUN_OPTIONS": "-x MARK=7"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        ["bash", DEPLOY / f"{scheduler}.sh"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(
        f"tfddlrun: 2 processes (2 on localhost), by the tasks of {scheduler.upper()} ("
    )
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] trains with ['--epochs', '3'] 7" for rank in (0, 1)
    ]


def test_command_of_the_job_of_kubernetes(tmp_path):
    """With the host file that the operator writes."""
    job = yaml.safe_load((DEPLOY / "mpijob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    launcher, worker = (
        job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["containers"][0]
        for role in ("Launcher", "Worker")
    )
    assert launcher["image"] == worker["image"]
    program, *arguments = launcher["command"]
    assert program == "tfddlrun"
    hosts = tmp_path / "hostfile"
    slots = job["spec"]["slotsPerWorker"]
    hosts.write_text("".join(f"tfddl-worker-{i}.tfddl.default.svc slots={slots}\n" for i in range(2)))
    arguments[arguments.index("/etc/mpi/hostfile")] = str(hosts)
    result = CliRunner().invoke(run.main, ["--dry-run", *arguments])
    assert result.exit_code == 0, result.output
    assert "tfddl-worker-0.tfddl.default.svc:2,tfddl-worker-1.tfddl.default.svc:2" in result.stdout


def test_scripts_of_the_image_for_apptainer():
    sections = re.split(r"^%(\w+)\n", (DEPLOY / "tfddl.def").read_text(), flags=re.MULTILINE)
    parts = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert list(parts) == ["files", "post", "environment", "runscript"]
    for name in ("post", "environment", "runscript"):
        subprocess.run(["sh", "-n"], input=parts[name], text=True, check=True)
