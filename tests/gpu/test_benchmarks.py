"""The benchmarks for GPUs run on the doubles, whose times mean nothing, and say so where there is no GPU."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness import long, run_script
from tests.harness.job import REPOSITORY
from tfddl.build.discover import find_tensorflow
from tfddl.build.locate import locate_library

BENCHMARKS = REPOSITORY / "benchmarks" / "gpu"

ON_DOUBLE = Path(__file__).with_name("on_double.py")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "options", "title"),
    [
        ("allreduce.py", ["--largest", "65536", "--ways", "graph"], "allreduce float32 Sum on GPUs, 2 ranks"),
        (
            "overlap.py",
            ["--width", "8", "--times", "1", "--megabytes", "1"],
            "buckets behind computation, 2 ranks",
        ),
    ],
)
def test_benchmark_runs_and_its_results_are_right(run_on_gpus, name, options, title):
    result = run_on_gpus(2, ON_DOUBLE, str(BENCHMARKS / name), "--rounds", "1", *options)
    assert result.code == 0, result.output
    assert title in result.output and "NCCL 22707" in result.output


WITHOUT_TENSORFLOW = """
import ctypes, runpy, sys
ctypes.CDLL({tensorflow!r})  # the library with the ops asks for it by name
sys.modules["tensorflow"] = None
sys.argv[1:] = {options!r}
sys.path.insert(0, {directory!r})
runpy.run_path({path!r}, run_name="__main__")
"""


@pytest.mark.parametrize("ranks", [long(1), 2, long(3)])
def test_without_tensorflow(run_on_gpus, ranks):
    """Every collective and dtype, by what compiled programs call."""
    tensorflow = find_tensorflow()
    assert tensorflow is not None
    options = ["--rounds", "1", "--largest", "4096", "--gpus", str(ranks), "--library", str(locate_library())]
    script = WITHOUT_TENSORFLOW.format(
        tensorflow=tensorflow.library,
        options=options,
        directory=str(BENCHMARKS),
        path=str(BENCHMARKS / "core.py"),
    )
    result = run_on_gpus(ranks, script)
    assert result.code == 0, result.output
    assert result.output.count("every collective and dtype is right") == ranks
    assert re.search(r" 4,096 .* 0$", result.output, re.MULTILINE), result.output


@pytest.mark.slow
def test_no_gpu():
    result = run_script(2, BENCHMARKS / "overlap.py")
    assert result.code == 0, result.output
    assert "no GPU: TensorFlow sees none on ranks [0, 1]" in result.output


@pytest.mark.long
def test_proof(on_doubles, tmp_path, monkeypatch):
    """The steps of `make gpu-proof`: a good run, a second run with nothing to do, a failure, an unknown step."""

    def prove(step):
        options = ["--quick", "--directory", os.path.relpath(tmp_path), "--only", step]
        command = ["timeout", "-k", "5", "200", sys.executable, str(BENCHMARKS / "proof.py"), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    code, output = prove("killed")
    assert code == 0 and "killed-2 ..." in output and "passed" in output, output
    code, output = prove("killed-2")
    assert code == 0 and "killed-2 ..." not in output and "passed" in output, output
    code, output = prove("overlap")
    assert code == 0, output
    measured = json.loads((tmp_path / "results.json").read_text())["steps"]["overlap-2"]["rows"]
    assert [(row["MB"], row["#wrong"]) for row in measured] == [(1, 0)]
    monkeypatch.setenv("TFDDL_FAKE_FAIL_RANK", "0")
    monkeypatch.setenv("TFDDL_FAKE_FAIL_AT", "1")
    code, output = prove("collectives-1")
    assert code == 1 and "FAILED: code 1" in output and "asynchronous work" in output, output
    results = json.loads((tmp_path / "results.json").read_text())["steps"]
    assert results["killed-2"]["passed"] and not results["collectives-1"]["passed"]
    code, output = prove("kiled")
    assert code == 2 and "no such step on this host: kiled" in output, output


@pytest.mark.slow
def test_an_interrupted_proof_leaves_nothing_running(on_doubles, tmp_path):
    options = ["--quick", "--directory", str(tmp_path), "--only", "killed"]
    command = [sys.executable, str(BENCHMARKS / "proof.py"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as proof:
        assert proof.stdout is not None
        assert proof.stdout.readline() == "killed-2 ...\n"
        time.sleep(2)
        os.killpg(proof.pid, signal.SIGINT)
        assert "the same command goes on" in proof.communicate(timeout=60)[0]
    assert proof.returncode == 1
    listed = subprocess.run(
        ["pgrep", "-f", "tests.gpu.failures"], capture_output=True, text=True, check=False
    )
    folders = [os.path.realpath(f"/proc/{number}/cwd") for number in listed.stdout.split()]
    assert str(tmp_path) not in folders
