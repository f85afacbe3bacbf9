"""tfddlrun --auto: an unchanged program of Keras."""

import re
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from tests.harness import run_script
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
    for command in ("./train", "python", "python -u", "python -um", "python -u --"):
        result = CliRunner().invoke(run.main, ["--auto", "-np", "2", "--dry-run", *command.split()])
        assert result.exit_code == 2
        assert f"tfddlrun --auto python train.py. Received: {command}" in result.output
    monkeypatch.setenv(auto.SEED, "one")
    result = CliRunner().invoke(run.main, ["--auto", "-np", "2", "python", "train.py"])
    assert result.exit_code == 2
    assert "TFDDL_SEED='one'" in result.output


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
    assert "so each of 2 processes has done all the work" in result.output
