"""Last lines for errors of programs, such as those that spellings of Keras 2 cause under Keras 3."""

import json
import subprocess
import sys

import pytest

import tfddl
from tfddl.launch.hints import hint, hint_before

_ALL_FITS = "them in keras.utils.PyDataset, not in fit"
# Line of a program -> the words of Keras 3, and how those of Keras 2 begin.
LINES = {
    "keras.optimizers.SGD(lr=0.002)": ("learning_rate=", "lr="),
    "optimizer.lr": ("optimizer.learning_rate", "optimizer.lr"),
    "optimizer.variables()": ("optimizer.variables", "optimizer.variables()"),
    "model.compile('sgd', experimental_run_tf_function=False)": ("", "experimental_run_tf_function="),
    "model.fit([[1.0]], [1.0], workers=2)": (_ALL_FITS, "workers="),
    "model.evaluate([[1.0]], [1.0], workers=2)": (_ALL_FITS, "workers="),
    "model.predict([[1.0]], use_multiprocessing=True)": (_ALL_FITS, "workers="),
    "model.fit_generator([1])": ("fit, evaluate and predict", "fit_generator, "),
    "tf.keras.backend.set_value(optimizer.learning_rate, 0.2)": (
        "variable.assign(value)",
        "backend.set_value(",
    ),
    "optimizer.lrr": None,
    "optimizer.learning_rate()": None,
}
PROGRAM = f"""
import json, traceback
import keras, tensorflow as tf
optimizer = keras.optimizers.SGD(0.1)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
errors = {{}}
for line in {list(LINES)!r}:
    try:
        exec(compile(line, "train.py", "exec"))
    except Exception:
        errors[line] = traceback.format_exc().replace("<module>", "<module>\\n    " + line)
print(json.dumps(errors))
"""


@pytest.fixture(scope="module")
def errors():
    """What Python prints for each line, from one process."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("line", LINES)
def test_hint(errors, line, monkeypatch):
    said = hint(errors[line], 2, ["python", "train.py"], horovod=False)
    if LINES[line] is None:
        assert said == ""
    else:
        new, old = LINES[line]
        begin = (
            f"Keras 3 has {new} in place of {old}" if new else f"leave {old} out, Keras 3 does not need it"
        )
        assert said.startswith(f"tfddlrun: {begin}")
        assert said.endswith("under tfddlrun --horovod, without --no-keras2-spellings")
        # A job that accepts such spellings has failed with one all the same.
        accepted = hint(errors[line], 2, ["python", "train.py"], horovod=True)
        assert said.startswith(f"{accepted}. ")
        monkeypatch.setenv("TFDDL_KERAS2_SPELLINGS", "0")
        assert hint(errors[line], 2, ["python", "train.py"], horovod=True) == said


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("os.makedirs('a/b')", "os.makedirs(path, exist_ok=True)"),
        ("pathlib.Path('a').mkdir()", "Path(path).mkdir(parents=True, exist_ok=True)"),
        ("os.makedirs('a/b', exist_ok=True)\nopen('a/c', 'x')\nopen('a/c', 'x')", ""),
        ("import h5py; h5py.File('locked', 'w')", "write `if hvd.rank() == 0:` before it"),
        ("import h5py; h5py.File('locked', 'r')", ""),
    ],
)
def test_a_file_or_folder_of_another_process(tmp_path, line, remedy):
    (tmp_path / "a/b").mkdir(parents=True)
    lock = "locked = open('locked', 'w')\nfcntl.flock(locked, fcntl.LOCK_EX)"
    (tmp_path / "train.py").write_text(f"import fcntl, os, pathlib\n{lock}\n{line}\n")
    ended = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert "FileExistsError: " in ended.stderr or "BlockingIOError: " in ended.stderr
    said = [hint(ended.stderr, count, ["python", "train.py"], horovod=False) for count in (1, 2)]
    assert [bool(each) for each in said] == [False, bool(remedy)]
    assert remedy in said[1]


@pytest.mark.parametrize(
    ("source", "processes", "doubted"),
    [
        ("import keras\n", 2, True),
        ("def main():\n    from tensorflow import keras\n", 3, True),
        ("import keras\n", 1, False),
        ("import keras\nimport tfddl as hvd\n", 2, False),
        ("import keras\nfrom mpi4py import MPI\n", 2, False),
        ("import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()\n", 2, False),
        ("import tensorflow as tf\ntf.distribute.MirroredStrategy()\n", 2, True),
        ("import numpy\n", 2, False),
    ],
)
def test_a_program_without_tfddl(tmp_path, source, processes, doubted):
    script = tmp_path / "train.py"
    script.write_text(source)
    said = hint_before(["python", "-u", str(script), "--epochs", "3"], processes)
    line = f"tfddlrun --auto -np {processes} python -u {script} --epochs 3"
    assert said.endswith(f": {line}") if doubted else said == ""
    assert ("Leave tf.distribute's strategy" in said) == (doubted and "tf.distribute" in source)
    assert hint_before(["python", str(tmp_path / "none.py")], 2) == hint_before(["./train"], 2) == ""


@pytest.mark.parametrize("line", ["import tfddl.tensorflow.keras as hvd", "from tfddl import hvd"])
def test_a_spelling_of_horovod(line):
    ended = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, timeout=60)
    assert hint(ended.stderr, 2, ["python", "train.py"], horovod=False).endswith("write import tfddl as hvd")


@pytest.mark.parametrize("line", ["tfddl.init()", "from tfddl import init", "import tfddl.elastic", "1 / 0"])
@pytest.mark.parametrize("script", ["train.py", "tfddl.py"])
def test_a_file_that_hides_the_package(tmp_path, script, line):
    (tmp_path / "tfddl.py").touch()
    path = tmp_path / script
    path.write_text(f"import tfddl\n{line}\n")
    ended = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)
    said = hint(ended.stderr, 2, ["python", str(path)], horovod=False)
    assert ("0" in line and not said) or f"{tmp_path}/tfddl.py hides the package tfddl: rename" in said


def test_a_file_that_hides_tensorflow(tmp_path):
    """Python names the module and the attribute."""
    (tmp_path / "tensorflow.py").touch()
    path = tmp_path / "train.py"
    path.write_text("import tensorflow as tf\ntf.keras.Sequential()\n")
    ended = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)
    said = hint(ended.stderr, 2, ["python", str(path)], horovod=False)
    assert f"{tmp_path}/tensorflow.py hides the package tensorflow" in said


def test_a_call_that_one_rank_alone_makes():
    errors = f"""Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    hvd.evaluate(model, x, y)
  File "{tfddl.__file__}", line 82, in evaluate
    (has_rows,) = all_numbers(bool(logs), name="evaluate.present")
  File "<string>", line 507, in tfddl_allgather
UnknownError: tfddl 'evaluate.present': rank 1 has shut down tfddl (its program ended, raised, or called hvd.shutdown())
"""
    said = hint(errors, 2, ["python", "train.py"], horovod=False)
    assert said.startswith(
        "tfddlrun: rank 1 has ended without the call in line 9 of /home/me/train.py: hvd.evaluate(model, x, y). Let all"
    )
