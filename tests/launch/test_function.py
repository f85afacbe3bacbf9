"""`tfddl.run`: a function on several processes, from a script, a notebook, or twice in a row."""

import errno
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import cloudpickle
import pytest

import tfddl
from tests.harness import long, run_script, slow
from tests.harness.job import REPOSITORY
from tests.launch.support import wait_until
from tfddl.launch import function


@pytest.mark.parametrize("ranks", [long(1), 2, long(3)])
def test_results_by_rank(ranks, tmp_path, monkeypatch, capfd):
    """A function that is defined here trains; it returns what pickle alone does not take."""
    monkeypatch.chdir(tmp_path)
    factor = 10

    def train(add, more=0):
        import os

        import tfddl as hvd

        hvd.init()
        print(f"hello from {hvd.rank()}")
        total = float(hvd.allreduce(float(hvd.rank()), op=hvd.Sum))
        return factor * hvd.rank() + add + more, total, lambda: os.environ["GREETING"]

    for _ in range(2):
        results = tfddl.run(train, args=(1,), kwargs={"more": 2}, np=ranks, env={"GREETING": "hi"})
        assert [value for value, _, _ in results] == [10 * rank + 3 for rank in range(ranks)]
        assert {total for _, total, _ in results} == {sum(range(ranks))}
        assert callable(results[0][2])
    assert capfd.readouterr().out.count("hello from") == 2 * ranks
    assert list(tmp_path.iterdir()) == []


def test_the_traceback_of_the_rank(tmp_path, monkeypatch, capfd):
    """It names this file, also with a cloudpickle after 3.1.2, which leaves out the names of files."""
    monkeypatch.chdir(tmp_path)
    plain = cloudpickle.CloudPickler.dispatch_table[types.CodeType]
    monkeypatch.setitem(
        cloudpickle.CloudPickler.dispatch_table,
        types.CodeType,
        lambda code: plain(code.replace(co_filename="<dynamic-code>")),
    )

    def fail():
        import os
        import time

        if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
            raise KeyError("planted")
        time.sleep(60)

    with pytest.raises(
        RuntimeError, match=r"(?s)^fail failed on rank 1:\nTraceback .*KeyError: 'planted'"
    ) as caught:
        tfddl.run(fail, np=2)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "ranks/function" not in str(caught.value)
    assert f'File "{__file__}", line ' in str(caught.value)
    assert "Traceback" not in "".join(capfd.readouterr())
    with pytest.raises(
        RuntimeError, match="not defined\n<lambda> runs in new processes: import what it uses inside it"
    ):
        tfddl.run(lambda: keras, np=1)  # noqa: F821
    with pytest.raises(RuntimeError, match="The job of <lambda> ended with exit code 3"):
        tfddl.run(lambda: sys.exit(3), np=2)

    def leave():
        import os

        if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
            sys.exit(0)

    with pytest.raises(RuntimeError, match="leave did not return on rank 0, which ended with exit code 0"):
        tfddl.run(leave, np=2)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def beside_the_rank(tmp_path, monkeypatch):
    """Writes the module `beside_the_rank` into a folder that this process does not search, and returns the folder."""
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "made").mkdir()
        (tmp_path / "made/beside_the_rank.py").write_text(text)
        return str(tmp_path / "made")

    return write


def test_an_exception_that_only_the_rank_can_import(beside_the_rank):
    folder = beside_the_rank("class PlantedError(Exception):\n    pass\n")

    def fail(path):
        import sys

        sys.path.append(path)
        import beside_the_rank

        raise beside_the_rank.PlantedError("planted")

    with pytest.raises(RuntimeError, match=r"(?s)^fail failed on rank 0:.*PlantedError: planted") as caught:
        tfddl.run(fail, args=(folder,), np=1)
    assert caught.value.__cause__ is None


def test_a_result_that_cannot_be_pickled():
    with pytest.raises(
        RuntimeError, match=r"the result of <lambda> has to be pickled.*Received: generator, for"
    ):
        tfddl.run(lambda: (each for each in "ab"), np=1)


def test_a_result_that_only_the_rank_can_load(beside_the_rank, tmp_path, monkeypatch):
    """Its file stays."""
    folder = beside_the_rank("class Planted:\n    value = 7\n")

    def work(path):
        import sys

        sys.path.append(path)
        import beside_the_rank

        return beside_the_rank.Planted()

    with pytest.raises(
        RuntimeError, match=r"^work returned a result on rank 0 .*get_weights.*No module"
    ) as caught:
        tfddl.run(work, args=(folder,), np=2)
    assert caught.value.__cause__ is None
    (kept,) = tmp_path.glob("tfddl-results-*")
    assert {each.name for each in kept.iterdir()} == {"result.0.pkl", "result.1.pkl"}
    assert f"pickle.load from {kept}/result.0.pkl" in str(caught.value)
    monkeypatch.syspath_prepend(folder)
    assert [pickle.loads(each.read_bytes()).value for each in kept.iterdir()] == [7, 7]


@pytest.mark.slow
def test_a_model_with_a_layer_of_the_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    import keras

    @keras.saving.register_keras_serializable()
    class Doubled(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    def work():
        return keras.Sequential([keras.Input((2,)), Doubled(), keras.layers.Dense(1)])

    with pytest.raises(RuntimeError, match=r"Received: \w+: Could not locate class 'Doubled'$") as caught:
        tfddl.run(work, np=1)
    assert len(str(caught.value)) < 600
    with keras.saving.custom_object_scope({"Doubled": Doubled}):
        model = pickle.loads(next(tmp_path.glob("tfddl-results-*/result.0.pkl")).read_bytes())
    assert isinstance(model.layers[0], Doubled)


def test_number_of_processes_by_default(tmp_path, monkeypatch):
    """As tfddlrun chooses it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert tfddl.run(lambda: "done", env={"CUDA_VISIBLE_DEVICES": "0,1"}) == ["done", "done"]
    with pytest.raises(
        ValueError, match=r"run\(fn, np=2\). Without np, tfddl.run takes the tasks .*no allocation, no GPU"
    ):
        tfddl.run(print)


def test_variables_reach_other_hosts(tmp_path, monkeypatch):
    """As `-x NAME` brings them there. The name of a bash function is none that -x takes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setattr(function, "_follow", lambda *given: started.extend(given) or 3)
    started = []
    with pytest.raises(RuntimeError, match="ended with exit code 3"):
        tfddl.run(print, np=2, env={"DATA": "/data", b"B": b"1", "BASH_FUNC_module%%": "() { :; }"})
    command, environment = started
    assert command[5:11] == ["-np", "2", "-x", "DATA", "-x", "B"] and command[11] == sys.executable
    given = {name: value for name, value in environment.items() if name not in os.environ}
    assert given == {"DATA": "/data", "B": "1", "BASH_FUNC_module%%": "() { :; }"}


def test_what_is_refused():
    with pytest.raises(ValueError, match="Received: np=0"):
        tfddl.run(print, np=0)
    with pytest.raises(ValueError, match="Received: hosts=''"):
        tfddl.run(print, np=2, hosts="")
    for wrong in (2.0, True, "2"):
        with pytest.raises(TypeError, match=rf"as an int: call run\(fn, np=2\)\. Received: np={wrong!r}"):
            tfddl.run(print, np=wrong)
    with pytest.raises(TypeError, match=r"as strings: pass env={'NAME': '1'}\. Received: env={'A': 1}"):
        tfddl.run(print, np=2, env={"B": "2", "A": 1})
    with pytest.raises(TypeError, match=r"as a dict: pass .*\. Received: env=\['A=1'\]"):
        tfddl.run(print, np=2, env=["A=1"])
    with pytest.raises(TypeError, match=r"tfddlrun -np 2 python train.py\. Received: 'train.py'"):
        tfddl.run("train.py", np=2)
    with pytest.raises(TypeError, match=r"as a tuple: pass args=\(0.01,\). Received: args=0.01"):
        tfddl.run(print, args=0.01, np=2)

    async def awaits():
        pass

    with pytest.raises(TypeError, match=r"calls asyncio\.run\(\.\.\.\)\. Received: async def awaits"):
        tfddl.run(awaits, np=2)
    generator = (each for each in "ab")
    with pytest.raises(TypeError, match=r"print and its arguments have to be pickled.*generator"):
        tfddl.run(print, args=(generator,), np=2)


def test_a_full_disk(tmp_path, monkeypatch):
    """The function travels through the directory for temporary files, and the working directory stays empty."""
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    other.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    monkeypatch.setattr(function, "_follow", lambda command, _: started.append(Path(command[4])) or 3)
    write, started = Path.write_bytes, []

    def write_unless_full(path, content):
        if here in path.absolute().parents:
            raise OSError(errno.ENOSPC, "planted")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", write_unless_full)
    with pytest.raises(RuntimeError, match="The job of print ended with exit code 3"):
        tfddl.run(print, np=1)
    assert [path.parent for path in started] == [other]
    assert list(here.iterdir()) == []


def test_a_module_beside_the_script(tmp_path):
    """As `python src/train.py` finds it, from any directory."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/beside.py").write_text("def answer():\n    return 42\n")
    script = tmp_path / "src/train.py"
    script.write_text("import beside, tfddl\nassert tfddl.run(beside.answer, np=2) == [42, 42]\n")
    result = run_script(0, script)
    assert result.code == 0, result.output


def test_in_a_notebook():
    """A notebook replaces sys.stdout, and gets what the processes write."""
    script = """
    import io, sys, tfddl
    sys.stdout = cell = io.StringIO()
    def work():
        print("below the cell")
    tfddl.run(work, np=2)
    sys.stdout = sys.__stdout__
    assert sorted(cell.getvalue().splitlines()) == ["[0] below the cell", "[1] below the cell"], cell.getvalue()
    """
    result = run_script(0, script)
    assert result.code == 0, result.output
    assert "below the cell" not in result.output


@pytest.mark.parametrize(
    ("number", "notebook"),
    [
        (signal.SIGINT, False),
        slow(signal.SIGINT, True),
        slow(signal.SIGTERM, False),
        (signal.SIGKILL, True),
    ],
)
def test_a_signal_to_the_program_alone(tmp_path, number, notebook):
    """SIGINT, as the stop button of a notebook sends it, and SIGKILL, as "Restart kernel" does, end all ranks.

    So does SIGTERM to a program that handles it and ignores SIGINT, as `python train.py &` of a script does.
    """
    marks = tmp_path / "marks"
    marks.mkdir()
    script = tmp_path / "script.py"
    script.write_text(f"""
import io, signal, sys, tfddl
if {notebook}:
    sys.stdout = io.StringIO()
if {number == signal.SIGTERM}:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
def work():
    import os, pathlib, time
    (pathlib.Path({str(marks)!r}) / str(os.getpid())).touch()
    time.sleep(100)
tfddl.run(work, np=2)
""")
    process = subprocess.Popen(
        [sys.executable, str(script)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    )
    try:
        wait_until(lambda: len(list(marks.iterdir())) == 2)
        pids = [int(mark.name) for mark in marks.iterdir()]
        process.send_signal(number)
        process.wait(25)  # less than run() gives tfddlrun

        def left():
            directories = list(tmp_path.glob(".tfddl-run-*"))
            return [*directories, *(pid for pid in pids if Path(f"/proc/{pid}").exists())]

        wait_until(lambda: not left())
    finally:
        process.kill()
