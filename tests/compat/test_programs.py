"""Programs for Horovod run unchanged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import long, run_script
from tests.harness.job import REPOSITORY
from tfddl.compat import horovod_run, horovod_variables
from tfddl.launch import horovod_settings
from tfddl.launch.ranks import horovod

PROGRAMS = Path(__file__).parent / "programs"
TFDDLRUN = [sys.executable, "-m", "tfddl.launch.run"]


def run(size, program, *arguments, options=(), **more):
    launcher = [*TFDDLRUN, "--horovod", "-np", str(size), *options]
    result = run_script(size, program, *map(str, arguments), launcher=launcher, **more)
    assert result.code == 0, result.output
    return result.output


@pytest.mark.parametrize("ranks", [long(1), long(2), 3])
def test_collectives(ranks):
    assert run(ranks, PROGRAMS / "collectives.py").count("fine") == ranks


@pytest.mark.parametrize("ranks", [long(1), 2, long(3)])
def test_fit(ranks, tmp_path):
    output = run(ranks, PROGRAMS / "keras_fit.py", tmp_path)
    assert output.count(": fine") == ranks
    for spelling in (
        "`keras.optimizers.legacy.SGD` is a spelling of Keras 2; in Keras 3 write `keras.optimizers.SGD`",
        "`SGD(lr=...)` is a spelling of Keras 2; in Keras 3 write `SGD(learning_rate=...)`",
        "`optimizer.lr` is",
        "`compile(..., experimental_run_tf_function=...)` is",
        "`fit(..., workers=...)` is",
        "`model.fit_generator(...)` is",
        "`model.evaluate_generator(...)` is",
        "`backend.set_value(variable, value)` is",
        "`variable.ref()` is",
        "`metric.reset_states()` is",
        "`tf.keras.losses.mean_squared_error` is",
    ):
        (line,) = [line for line in output.splitlines() if spelling in line]
        assert "keras_fit.py:" in line
    # Once eagerly, and once in a tf.function.
    source = (PROGRAMS / "keras_fit.py").read_text().splitlines()
    traced = next(
        number for number, line in enumerate(source, 1) if "the line that the warning names" in line
    )
    warned = [line for line in output.splitlines() if "`optimizer.variables()` is" in line]
    assert len(warned) == 2
    assert f"keras_fit.py:{traced}: " in warned[1]
    if ranks > 1:
        assert (
            output.count("The model's optimizer is not distributed, so each rank would train on its own") == 1
        )
    # A process without tfddl loads the model.
    code = f"import keras; print(type(keras.models.load_model({str(tmp_path / '0.keras')!r}).optimizer).__module__)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert loaded.stdout.strip() == "keras.src.optimizers.sgd"


REFUSED = {
    "keras.optimizers.SGD(lr=0.1)": "'lr'",
    "keras.optimizers.SGD(0.1).variables()": "'list' object is not callable",
    "import horovod.torch": "No module named 'horovod.torch': tfddl is for TensorFlow and Keras",
    "hvd.spark": "module 'horovod.tensorflow' has no attribute 'spark': start the training on the hosts",
}


@pytest.mark.slow
def test_what_is_refused():
    script = f"""
    import keras
    import horovod.tensorflow as hvd
    for line in {list(REFUSED)}:
        try:
            exec(line)
        except Exception as error:
            print("refused", error, flush=True)
    """
    output = run(1, script, options=["--no-keras2-spellings"])
    refused = [line for line in output.splitlines() if line.startswith("refused")]
    assert len(refused) == len(REFUSED), output
    for line, text in zip(refused, REFUSED.values(), strict=True):
        assert text in line


def test_first_line(tmp_path):
    """Without --horovod: by an import, which has to come first, and with Horovod's variables unset, except for settings."""
    script = """
    import os
    import tfddl.compat.horovod
    import horovod.tensorflow as hvd
    hvd.init()
    assert "HOROVOD_RANK" not in os.environ
    assert os.environ["TFDDL_BUCKET_MB"] == "64.0" and os.environ["TFDDL_STALL_WARNING"] == "7"
    assert hvd.allreduce([1.0], op=hvd.Sum).numpy() == [hvd.size()]
    assert hvd.mpi_ops.rank() == hvd.rank()
    """
    settings = {
        "HOROVOD_FUSION_THRESHOLD": str(64 * 2**20),
        "HOROVOD_TIMELINE": str(tmp_path / "timeline.json"),
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "9",
        "TFDDL_STALL_WARNING": "7",
        "HOROVOD_CYCLE_TIME": "1",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_WITH_TENSORFLOW": "1",
    }
    result = run_script(2, script, environment=settings)
    assert result.code == 0, result.output
    assert (
        result.output.count("HOROVOD_AUTOTUNE, HOROVOD_CYCLE_TIME: changes nothing in tfddl; leave it out")
        == 1
    )
    assert len(list(tmp_path.glob("timeline*.json"))) == 2


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "0", {"TFDDL_BUCKET_MB": "1e-06"}),
        ("HOROVOD_TIMELINE", "DYNAMIC", {}),
        ("HOROVOD_TIMELINE_MARK_CYCLES", "1", {"TFDDL_TIMELINE_MARK_CYCLES": "1"}),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0", {"TFDDL_STALL_LIMIT": "inf"}),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "1", {"TFDDL_HIERARCHICAL_ALLREDUCE": "1"}),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "false", {"TFDDL_HIERARCHICAL_ALLREDUCE": "0"}),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "-1", {"TFDDL_HIERARCHICAL_ALLREDUCE": "0"}),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "60.0", {"TFDDL_STALL_WARNING": "60.0"}),
        ("HOROVOD_STALL_CHECK_DISABLE", "1", {"TFDDL_STALL_WARNING": "inf", "TFDDL_STALL_LIMIT": "inf"}),
        ("HOROVOD_STALL_CHECK_DISABLE", "0", {}),
        ("HOROVOD_GPU_OPERATIONS", "NCCL", {}),
    ],
)
def test_a_setting_of_horovod(name, value, expected):
    assert horovod_settings.translated({name: value}) == expected
    assert horovod_variables.without_effect({name: value}) == []


@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        ("./nosuch", 127, "No such file or directory; give the path of a program"),
        ("nosuch.py", 127, "No such file or directory; start a Python script by Python: python nosuch.py"),
        (__file__, 126, f"it is no program; start a Python script by Python: python {__file__}"),
    ],
    ids=["path", "script", "no program"],
)
def test_a_command_that_cannot_run(command, code, reason):
    """The words and the code are those of a job without --horovod."""
    names = [name for each in horovod._VARIABLES.values() for name in each]
    ended = subprocess.run(
        [sys.executable, "-I", "-S", horovod.__file__, command],
        env=os.environ | dict.fromkeys(names, "1"),
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (code, f"tfddlrun: cannot run '{command}': {reason}\n")


def test_a_setting_of_horovod_that_is_no_number():
    with pytest.raises(ValueError, match=r"HOROVOD_FUSION_THRESHOLD is a whole number.* Received: '64MB'"):
        horovod_settings.translated({"HOROVOD_FUSION_THRESHOLD": "64MB"})


def test_arguments_of_horovod_run(monkeypatch):
    """They become options of tfddlrun; a warning names those that change nothing."""
    calls = []
    monkeypatch.setattr(horovod_run, "run_function", lambda *arguments: calls.append(arguments[3]))
    horovod_run.run(print, np=2, executable=sys.executable, use_mpi=True, disable_cache=False)
    assert calls.pop() == ["-np", "2", "--horovod"]
    with pytest.warns(UserWarning, match="slots, cooldown_range, executable: changes nothing in tfddl"):
        horovod_run.run(
            print,
            num_proc=3,
            hosts="a:2,b:1",
            slots=2,
            cooldown_range=(1, 2),
            start_timeout=30,
            ssh_port=2222,
            ssh_identity_file="key",
            output_filename="out",
            mpi_args="--mca btl ^openib",
            network_interfaces=["eth0", "eth1"],
            executable="/opt/python",
        )
    wanted = "--horovod --hosts=a:2,b:1 --start-timeout=30 --ssh-port=2222 --ssh-identity-file=key --output-filename=out"
    more = ["--mpi-args=--mca btl ^openib", "--network-interfaces=eth0,eth1"]
    assert calls.pop() == ["-np", "3", *wanted.split(), *more]


def test_real_horovod_came_first(tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("")
    result = run_script(
        0,
        "import horovod\nimport tfddl.compat.horovod\n",
        environment={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
    )
    assert result.code == 1
    assert "has to come before the first import of horovod" in result.output
    assert str(tmp_path) in result.output


def test_run_calls_a_function():
    """`horovod.run` of a function of the script, and of one that fails."""
    script = """
    import tfddl.compat.horovod
    import horovod

    def train(factor, add):
        import horovod.tensorflow as hvd
        hvd.init()
        return factor * hvd.rank() + add, lambda: hvd.size()

    results = horovod.run(train, args=(10,), kwargs={"add": 1}, np=2)
    assert [value for value, _ in results] == [1, 11], results
    assert callable(results[1][1])

    def fail():
        raise KeyError("planted")

    try:
        horovod.run(fail, np=2)
    except RuntimeError as error:
        print(error)
    """
    result = run_script(0, script)
    assert result.code == 0, result.output
    assert "KeyError: 'planted'" in result.output
    assert "fail failed on rank" in result.output


def test_horovodrun(tmp_path):
    """The command of the distribution tfddl-horovod, with options of Horovod's machinery."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nimport horovod\nprint(sys.argv[1:], os.environ['TFDDL_BUCKET_MB'], horovod.__version__)\n"
    )
    command = [
        sys.executable,
        "-m",
        "tfddl.compat.horovod.horovodrun",
        "-np",
        "2",
        "--mpi",
        "--start-timeout",
        "100",
        "--fusion-threshold-mb",
        "32",
        "--binding-args",
        "--bind-to none",
    ]
    result = subprocess.run(
        [*command, "-H", "localhost:2", sys.executable, str(script), "--epochs", "3"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("['--epochs', '3'] 32.0 0.28.1") == 2
    assert result.stderr == "horovodrun: --mpi changes nothing in tfddl; leave it out\n"
    asked = subprocess.run([*command[:3], "-h"], capture_output=True, text=True, timeout=120, check=False)
    assert asked.stdout.startswith("Usage: "), asked.stderr
    elastic = ["--host-discovery-script", "echo localhost", "--max-np", "4", "--slots-per-host", "2"]
    found = subprocess.run(
        [*command, *elastic, "--blacklist-cooldown-range", "5", "9", sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0 and found.stdout.count("32.0 0.28.1") == 2, found.stdout + found.stderr
    assert "tfddlrun: 2 processes (2 on localhost), by --host-discovery-script" in found.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--config-file", "config.yaml", "true"], "horovodrun: controller in the file"),
        (["--config-file", "config.yaml", "true"], "long options of `horovodrun --help`"),
        (["-v"], "horovodrun 0."),
    ],
)
def test_the_name_of_horovodrun(tmp_path, options, said):
    (tmp_path / "config.yaml").write_text("controller: mpi\nnothing: 4")
    command = [sys.executable, "-m", "tfddl.compat.horovod.horovodrun", *options]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert said in " ".join((ended.stdout + ended.stderr).split())


def test_a_file_for_horovodrun(tmp_path):
    """The file may have all options of horovodrun; the command line wins over the file."""
    path = tmp_path / "job.yaml"
    path.write_text(
        "num-proc: 2\nmpi: true\nbinding-args: --report-bindings\nmin-np: 1\nparams:\n  fusion-threshold-mb: 16\n"
    )
    options = ["--config-file", str(path), "--fusion-threshold-mb", "32", "--dry-run"]
    command = [sys.executable, "-m", "tfddl.compat.horovod.horovodrun", *options, "true"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == "horovodrun: --mpi changes nothing in tfddl; leave it out\n"
    assert all(part in result.stdout for part in ("TFDDL_BUCKET_MB=32.0 ", " -np 2 ", " --report-bindings "))


def test_the_distribution_refuses_horovod(tmp_path):
    """The package `horovod` of tfddl-horovod, beside the metadata of a real Horovod and without."""
    package = REPOSITORY / "packages" / "tfddl-horovod"
    metadata = tmp_path / "horovod-0.28.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    code = "import json, sys, horovod; print(json.dumps([horovod.__version__, type(horovod).__module__]))"
    for path, works in ((f"{package}:{tmp_path}", False), (str(package), True)):
        result = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": f"{path}:{REPOSITORY}", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if works:
            assert json.loads(result.stdout) == ["0.28.1", "tfddl.compat.horovod.importer"], result.stderr
        else:
            assert "pip uninstall horovod tfddl-horovod" in result.stderr
