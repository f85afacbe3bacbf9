"""`tfddl bench --lab`: the same cases on hosts that are namespaces."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.bench.support import PLAIN, bench
from tests.harness import run_script
from tests.hosts.support import job_lab_or_skip, lab_or_skip
from tfddl.bench import lab as labs
from tfddl.bench.command import bench as command


@pytest.mark.long
@pytest.mark.parametrize(
    ("operation", "lab", "ranks", "names"),
    [
        ("allreduce", "2x1", 2, ["tfddl", "nothing", "tcp", "mpi4py", "mwms"]),
        ("alltoall", "3x1,-,1ms", 3, ["tfddl", "nothing", "tcp", "mpi4py"]),
    ],
)
def test_collectives(operation, lab, ranks, names, tmp_path):
    job_lab_or_skip(tmp_path)
    path = tmp_path / "result.json"
    result = bench(
        operation, "--lab", lab, "--sizes", "96K", "--rounds", "1", "--peers", "mpi4py,mwms", "--json", str(path)
    )  # fmt: skip
    assert result.code == 0, result.output
    document = json.loads(path.read_text())
    rows = {row["name"]: row for row in document["rows"]}
    assert list(rows) == names and document["failed"] == {} and document["ranks"] == ranks
    assert all(row["#wrong"] == 0 and row["us"] > 0 for row in rows.values())
    assert f"{ranks} ranks on {ranks} hosts" in result.output and "left running" not in result.output
    if (
        "ms" in lab
    ):  # a collective waits for frames that the switch holds; in a ring of TCP, bytes may be there before the call
        assert all(rows[name]["us"] > 1000 for name in ("tfddl", "mpi4py"))


# A copy and MPI, which need no TensorFlow; the copy is stopped between its blocks, as Horovod is.
ON_HOSTS = """
import dataclasses
from tfddl.bench import adapters
from tfddl.cli import main

copy = dataclasses.replace(adapters.OWN["copy"], hosts="any", restless=True)
adapters.OWN.clear()
adapters.OWN |= {"copy": copy}
main()
"""


def test_hosts_of_a_cluster(tmp_path):
    launcher, path = job_lab_or_skip(tmp_path), tmp_path / "result.json"
    arguments = ["bench", "allreduce", "-np", "3", "-H", "hostA,hostB:3", "--sizes", "96K", "--rounds", "1"]
    arguments += ["--peers", "mpi4py", "--json", str(path)]
    result = run_script(3, ON_HOSTS, *arguments, launcher=launcher)
    assert result.code == 0, result.output
    document = json.loads(path.read_text())
    assert document["hosts"] == {"hostA": 1, "hostB": 2} and document["ranks"] == 3
    rows = {row["name"]: row for row in document["rows"]}
    assert set(rows) == {"copy", "mpi4py", "floor"} and all(row["#wrong"] == 0 for row in rows.values())
    assert "3 ranks on 2 hosts" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-np", "3", "-H", "a,b"], "The hosts have 2 slots"),
        (["--lab", "2x1", "-H", "a,b"], "by -H or --hostfile, or by --lab, not by both"),
        (["-H", "a:two"], "write 'node1' or 'node1:4'. Received: a:two"),
    ],
)
def test_bad_hosts_are_an_error(arguments, says):
    result = CliRunner().invoke(command, ["allreduce", *arguments])
    assert result.exit_code == 2 and says in " ".join(result.output.replace("│", " ").split())


@pytest.mark.long
def test_training_beside_raw_tcp(tmp_path):
    job_lab_or_skip(tmp_path)
    path = tmp_path / "result.json"
    options = ["--models", "cnn", "--batch", "2", "--steps", "2", "--rounds", "1", "--peers", "none"]
    result = bench("training", "--lab", "2x1,1gbit", *options, "--json", str(path))
    assert result.code == 0, result.output
    rows = {row["name"]: row for row in json.loads(path.read_text())["rows"]}
    assert set(rows) == {"tfddl", "nothing", "in step", "tcp after a step", "alone"}
    assert all(row["#wrong"] == 0 for row in rows.values())
    least = (
        rows["tfddl"]["bytes"] * 8 / 1e9
    )  # seconds of the gradients of the CNN at 1 Gbit/s: two hosts send all once
    for name in ("tfddl", "tcp after a step"):
        assert rows[name]["us"] > 0.9e6 * least, "faster than the cable"


@pytest.mark.parametrize(
    ("lab", "says"),
    [
        ("1x2", "A lab has 2 to 8 hosts"),
        ("9x1", "A lab has 2 to 8 hosts"),
        ("2x0", "A lab has 2 to 8 hosts"),
        ("4", "write HOSTSxRANKS,RATE,DELAY"),
        ("2x1,1gbit,20ms,3", "write HOSTSxRANKS,RATE,DELAY"),
        ("2x1,fast", "A rate needs a unit: write 1gbit"),
        ("2x1,0gbit", "A rate needs a unit: write 1gbit"),
        ("2x1,-1gbit", "A rate needs a unit: write 1gbit"),
        ("2x1,1gbit,20", "A delay needs a unit: write 20ms"),
        ("2x1,1gbit,-5ms", "A delay needs a unit: write 20ms"),
    ],
)
def test_a_bad_lab_is_an_error(lab, says):
    result = CliRunner().invoke(command, ["allreduce", "--lab", lab])
    said = " ".join(result.output.replace("│", " ").split())
    part = lab if "unit" not in says else lab.split(",")[-1]
    assert result.exit_code == 2 and says in said and repr(part) in said


def test_other_numbers_of_ranks_are_an_error():
    result = CliRunner().invoke(command, ["allreduce", "-np", "3", "--lab", "2x1"])
    assert result.exit_code == 2 and "--lab has 2 ranks" in result.output and "-np 3" in result.output


def test_another_lab_around_is_an_error(monkeypatch):
    monkeypatch.setenv("LAB", "10mbit,,2")
    result = CliRunner().invoke(command, ["allreduce", "--lab", "2x1,1gbit"])
    assert result.exit_code == 2 and "runs in a lab of 10mbit,,2" in result.output


def test_a_machine_without_namespaces_is_an_error(monkeypatch):
    monkeypatch.setenv("PATH", "")
    result = CliRunner().invoke(command, ["allreduce", "--lab", "2x1"])
    assert result.exit_code == 1 and "install unshare, ip and tc, permit user namespaces" in result.output


@pytest.mark.parametrize(
    ("network", "says"),
    [
        ("100mbps", "A rate needs a unit: write 1gbit"),
        ("1gbit,20", "A delay needs a unit: write 20ms"),
        ("1gbit,5ms,two", "write 1gbit, or 100mbit,20ms,4"),
        ("1gbit,5ms,2,1", "write 1gbit, or 100mbit,20ms,4"),
        ("1gbit,,9", "The lab has 2 to 8 hosts"),
    ],
)
def test_a_bad_line_of_the_module_is_an_error(network, says, tmp_path):
    with pytest.raises(SystemExit, match=says):
        labs.check(tmp_path, network)
    labs.check(tmp_path, "1gbit,,3")
    (tmp_path / "hosts").touch()
    for directory in (tmp_path, tmp_path / "missing"):
        with pytest.raises(SystemExit, match=r"needs an empty directory: give it \$\(mktemp -d\)"):
            labs.check(directory, "1gbit")


def test_a_lab_hands_on_a_signal(tmp_path):
    """As from `timeout`; the command ends as it likes."""
    lab = lab_or_skip(tmp_path)
    script = (
        "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(9))\nprint(1, flush=True)\nsignal.pause()"
    )
    with subprocess.Popen([*lab, sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "1\n"
        running.terminate()
        assert running.wait(20) == 9


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_lab_that_is_stopped(number, tmp_path):
    job_lab_or_skip(tmp_path)
    arguments = [
        "bench",
        "allreduce",
        "--lab",
        "2x1",
        "--sizes",
        "4K,64M",
        "--rounds",
        "9",
        "--peers",
        "none",
    ]
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:  # short, for the names of sockets
        running = subprocess.Popen(
            [sys.executable, "-c", PLAIN, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"TMPDIR": folder},
            text=True,
            start_new_session=True,
        )
        try:
            assert running.stderr is not None
            assert any("measuring 64M" in line for line in running.stderr)
            os.kill(running.pid, number) if number == signal.SIGKILL else os.killpg(running.pid, number)
            output, errors = running.communicate(timeout=60)
        finally:
            running.kill()
        if number == signal.SIGINT:
            assert running.returncode == 130 and "only the finished cases are listed" in output, (
                output + errors
            )
            assert "4,096" in output and "Traceback" not in errors
        deadline = time.monotonic() + 20
        while folder in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        if number == signal.SIGTERM:
            assert running.returncode == 143
        assert number == signal.SIGKILL or not list(Path(folder).glob("tfddl-lab-*"))
