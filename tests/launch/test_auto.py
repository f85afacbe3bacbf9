"""tfddlrun --auto: an unchanged program of Keras."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from tests.harness import run_script
from tests.harness.job import REPOSITORY
from tfddl.launch import run
from tfddl.launch.ranks import auto

TFDDLRUN = [sys.executable, "-m", "tfddl.launch.run"]
PROGRAM = """
import sys
import numpy as np
drawn = np.random.normal()
import tensorflow as tf  # looks for Keras first
from tensorflow import keras
x = np.random.normal(size=(48, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
if sys.argv[1:] != ["idle"]:
    model.fit(x, x[:, :1], batch_size=16, verbose=0)
print("weights", drawn, model.get_weights()[0].ravel().tolist(), __name__, sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py 1", "python -m {} train.py 1"),
        ("/usr/bin/python3.11 -u -W error train.py", "/usr/bin/python3.11 -u -W error -m {} train.py"),
        ("python -m package.train -x", "python -m {} -m package.train -x"),
        ("python -um package.train -x", "python -u -m {} -m package.train -x"),
        ("python -uOmpackage.train", "python -uO -m {} -m package.train"),
        ("python -Wignore -uW error -Bc pass 1", "python -Wignore -uW error -B -m {} -c pass 1"),
        ("python -u - 1", "python -u -m {} - 1"),
        ("python -u -- train.py -- 1", "python -u -m {} train.py -- 1"),
        (
            "python --check-hash-based-pycs always -u train.py",
            "python --check-hash-based-pycs always -u -m {} train.py",
        ),
    ],
)
def test_the_command_of_a_rank(command, expected):
    assert auto.command_of(command.split()) == expected.format("tfddl.launch.ranks.auto").split()


def test_another_program_and_a_wrong_seed(monkeypatch):
    for command in ("./train", "python -um"):
        result = CliRunner().invoke(run.main, ["--auto", "-np", "2", "--dry-run", *command.split()])
        assert result.exit_code == 2
        assert f"tfddlrun --auto python train.py. Received: {command}" in result.output
    monkeypatch.setenv(auto.SEED, "one")
    result = CliRunner().invoke(run.main, ["--auto", "-np", "2", "python", "train.py"])
    assert result.exit_code == 2
    assert "TFDDL_SEED='one'" in result.output


MAIN = """
import multiprocessing, pickle, sys, threading, traceback

class Point:
    x: "int"

def line():
    return traceback.extract_stack()[-1].line

def after_the_last_line():
    threading.main_thread().join()
    print(type(pickle.loads(pickle.dumps(Point()))) is Point)

if __name__ == "__main__":
    spec = __spec__ and (__spec__.name, __spec__.origin)
    print(globals().get("__file__"), spec, __package__, __loader__, sys.path[0], sys.argv, sys.modules["__main__"])
    print(Point.__annotations__, type(__builtins__), __doc__)
    if sys.argv[0].endswith("train.py"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(line))
    threading.Thread(target=after_the_last_line).start()
"""


@pytest.mark.parametrize(
    "words",
    ["linked/train.py 1", "-c {} 1", "-m package.real.train 1", "package 1"],
    ids=lambda words: words.split()[0],
)
def test_a_program_sees_what_python_shows_it(words, tmp_path):
    for folder in ("linked", "package", "package/real"):
        (tmp_path / folder).mkdir()
    (tmp_path / "package/real/train.py").write_text(MAIN)
    (tmp_path / "package/__main__.py").write_text(MAIN)
    (tmp_path / "linked/train.py").symlink_to("../package/real/train.py")
    command = [word.format(MAIN) for word in words.split()]
    plain, ours = (
        subprocess.run(
            [sys.executable, *first, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), auto.SEED: "1"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        for first in ([], ["-m", "tfddl.launch.ranks.auto"])
    )
    assert re.sub(" at 0x[0-9a-f]+", "", ours.stdout) == re.sub(" at 0x[0-9a-f]+", "", plain.stdout)
    assert ours.stdout.endswith("True\n"), ours.stderr


@pytest.mark.slow
def test_one_process():
    """Plain `python`, as in a notebook: a line says how to get others. A launcher that starts one process was meant so."""
    script = "import tfddl as hvd\nhvd.DataParallel()"
    said = "DataParallel has one process to train on. Start the program by tfddlrun -np 2"
    assert said in run_script(0, script).output
    assert said not in run_script(1, script, launcher=[*TFDDLRUN, "-np", "1"]).output


@pytest.mark.slow
def test_a_job():
    """One process and two have the same weights; a program that trains nothing is told so."""
    lines = {}
    for size in (1, 2):
        launcher = [*TFDDLRUN, "--auto", "-np", str(size)]
        result = run_script(size, PROGRAM, launcher=launcher, environment={auto.SEED: "3"})
        assert result.code == 0, result.output
        lines[size] = [each.split() for each in re.findall(r"weights (.*)", result.output)]
    (alone,), (first, second) = lines[1], lines[2]
    assert first == second
    assert (alone[0], alone[-2:]) == (first[0], first[-2:])
    np.testing.assert_allclose(
        *([float(word.strip("[],")) for word in line[1:5]] for line in (alone, first)), rtol=1e-5
    )

    result = run_script(2, PROGRAM, "idle", launcher=[*TFDDLRUN, "--auto", "-np", "2"])
    assert "tfddlrun: the seed is" in result.output
    assert "so each of 2 processes has done all the work, unless the program shards its data" in result.output
    assert "without --auto and DataParallel, with hvd.init(), hvd.data.shard, hvd.Dist" in result.output


@pytest.mark.slow
def test_a_call_that_one_process_leaves_out():
    script = """
        import os, keras, numpy as np
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
            model.save("model.keras")
        model.fit(np.ones([4, 1]), np.ones([4, 1]), verbose=0)
    """
    result = run_script(2, script, launcher=[*TFDDLRUN, "--auto", "-np", "2"], limit=120)
    assert result.code != 0
    assert re.search(
        r"rank 0: .* \(in model.save\('.*model.keras'\).*; rank 1: 'DataParallel.fit", result.output
    )
