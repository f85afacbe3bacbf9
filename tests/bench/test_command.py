"""The command line of `tfddl bench`, without any job."""

import importlib.util
import json
import re
import signal

import pytest
from click.testing import CliRunner

from tfddl import cli
from tfddl.bench import adapters, command, param_types, rounds, session
from tfddl.bench.case import BUS_FACTORS
from tfddl.bench.gradient_sets import MODELS, SETS
from tfddl.bench.results import human, machine


def invoke(*arguments):
    return CliRunner().invoke(cli.main, ["bench", *arguments])


def choices(name, option):
    return {option.name: option for option in command.bench.commands[name].params}[option].type


def test_help_teaches():
    text = invoke("--help").output
    for word in (*BUS_FACTORS, "tfddl bench allreduce -np 2", "busbw", "#wrong", "floor"):
        assert word in text, word
    for operation in BUS_FACTORS:
        of_operation = invoke(operation, "--help").output
        assert "--peers" in of_operation and "tfddl bench --help" in of_operation, operation


def test_names_are_those_of_the_package():
    """The command's file repeats the names, since it loads neither NumPy nor TensorFlow."""
    assert choices("allreduce", "peers")._choices == tuple(adapters.PEERS)
    assert choices("gradients", "sets")._choices == tuple(SETS)
    assert choices("training", "models")._choices == tuple(MODELS)
    assert set(command.bench.commands) == set(BUS_FACTORS)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("4B", [4]), ("4,64K,1M", [4, 65536, 1 << 20]), ("2KiB, 1GB", [2048, 1 << 30]), ("16m", [16 << 20])],
)
def test_sizes(text, sizes):
    assert param_types.Sizes().convert(text, None, None) == sizes
    assert [param_types.Sizes().convert(human(size), None, None) for size in sizes] == [
        [size] for size in sizes
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["allreduce", "--sizes", "4B,big"],
            "Sizes are numbers of bytes: write them as in 4B,64K,1M. Received: '4B,big'",
        ),
        (["allreduce", "--sizes", "0"], "Received: '0'"),
        (["allreduce", "--peers", "mpi4py,nccl"], "or all, or none. Received: nccl"),
        (["gradients", "--sets", "alexnet"], "Received: alexnet"),
        (["allreduce", "-np", "0"], "0 is not in the range"),
        (["allreduce", "--dtype", "float8"], "'float8' is not one of"),
        (["allreduce", "--json", "no/such/result.json"], "no/such/result.json cannot be written"),
        (["allreduce", "--sizes", "4B,900G", "-np", "3"], "Input and result of 966.4 GB each on 3 ranks"),
        (
            ["gradients", "--plot", "result.txt"],
            "A picture is .png or .svg: choose a name that ends so. Received: result.txt",
        ),
    ],
)
def test_mistakes(arguments, says):
    result = invoke(*arguments)
    assert result.exit_code == 2 and says in result.output


@pytest.mark.parametrize(("package", "options"), [("rich", []), ("matplotlib", ["--plot", "result.png"])])
def test_a_missing_package_is_said_before_anything_is_measured(package, options, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    result = invoke("allreduce", *options)
    assert result.exit_code == 1
    assert result.output == (f"Error: tfddl bench needs {package}: pip install {package}\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted(monkeypatch, tmp_path, number):
    """The finished cases are kept."""
    sizes = []

    def measure(self, case, count):
        sizes.append(case.bytes)
        if len(sizes) == 2:
            signal.raise_signal(number)
        return {"tfddl": rounds.Timing((1.0, 2.0, 3.0))}

    monkeypatch.setattr(
        session.Session, "__init__", lambda self, *_: vars(self).update(failed={}, _groups={})
    )
    monkeypatch.setattr(session.Session, "measure", measure)
    path = tmp_path / "result.json"
    before = signal.signal(number, signal.SIG_DFL)
    try:
        result = invoke("allreduce", "--sizes", "4B,64K,1M", "--json", str(path))
    finally:
        signal.signal(number, before)
    assert result.exit_code == 128 + number and "stopped before the end" in result.output
    assert [(row["bytes"], row["us"]) for row in json.loads(path.read_text())["rows"]] == [(4, 2.0)]
    assert sizes == [4, 65536]


@pytest.mark.parametrize("error", [KeyboardInterrupt, None])
def test_nothing_was_measured(error, monkeypatch, tmp_path):
    """Ctrl-C in the first case, or a failure of all adapters, prints no traceback."""

    def measure(self, case, count):
        if error is not None:
            raise error
        return {}

    monkeypatch.setattr(
        session.Session, "__init__", lambda self, *_: vars(self).update(failed={"tfddl": "gone"}, _groups={})
    )
    monkeypatch.setattr(session.Session, "measure", measure)
    files = {name: tmp_path / f"result.{name}" for name in ("json", "png", "md")}
    options = ["--json", str(files["json"]), "--plot", str(files["png"]), "--markdown", str(files["md"])]
    result = invoke("allreduce", "--sizes", "4B", *options)
    assert isinstance(result.exception, SystemExit) and result.exit_code == (130 if error else 1)
    assert json.loads(files["json"].read_text())["rows"] == []


def test_a_full_disk(monkeypatch, tmp_path):
    """It costs neither the table nor the other files."""
    monkeypatch.setattr(
        session.Session, "__init__", lambda self, *_: vars(self).update(failed={}, _groups={})
    )
    monkeypatch.setattr(session.Session, "measure", lambda *_: {"tfddl": rounds.Timing((1.0, 2.0, 3.0))})
    path = tmp_path / "result.md"
    result = invoke("allreduce", "--sizes", "4B", "--json", "/dev/full", "--markdown", str(path))
    assert result.exit_code == 1
    assert re.search(
        r"(?s)allreduce, float32.*busbw.*Cannot write the results to all .*/dev/full \(", result.output
    )
    assert "tfddl" in path.read_text()


def test_a_broken_package_has_no_version(tmp_path, monkeypatch):
    """Without METADATA, as an installation leaves it that has been cut off."""
    (tmp_path / "broken-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert machine()["packages"]["numpy"]
