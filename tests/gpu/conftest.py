"""GPUs where there are none: doubles of CUDA and NCCL, and what shows them to TensorFlow."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import cmake
import pytest

from tests.harness import run_script
from tests.harness.script import ScriptResult
from tfddl.build.cache import locked
from tfddl.build.discover import find_tensorflow

SOURCES = Path(__file__).parents[2] / "custom_ops"
LIMIT = 300.0
"""Seconds for a job: TensorFlow's import and the first op take most of it on a busy machine."""


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of a test run share: what takes minutes to compile is compiled once."""
    mine = tmp_path_factory.getbasetemp()
    return mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine


@pytest.fixture(scope="session")
def doubles(run_directory: Path) -> Path:
    """The directory of the doubles and of the plugin for TensorFlow."""
    directory = run_directory / "doubles"
    with locked(directory.with_suffix(".lock")):
        if not directory.exists():
            _compile(directory)
    return directory


def _compile(directory: Path) -> None:
    tensorflow = find_tensorflow()
    assert tensorflow is not None
    tool = str(Path(cmake.CMAKE_BIN_DIR) / "cmake")
    options = {
        "TFDDL_WITH_TENSORFLOW": "OFF",
        "TFDDL_BUILD_TESTS": "ON",
        "CMAKE_BUILD_TYPE": "Debug",
        "TFDDL_TF_INCLUDE": tensorflow.include,
        "TFDDL_TF_LIBRARY": tensorflow.library,
    }
    for command in (
        [
            tool,
            "-S",
            str(SOURCES),
            "-B",
            str(directory),
            *(f"-D{key}={value}" for key, value in options.items()),
        ],
        [tool, "--build", str(directory), "--parallel", "2", "--target", "tfddl_fake_gpu", "tfddl_fake_nccl"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def variables_of(doubles: Path) -> dict[str, str]:
    """The environment in which programs find the doubles."""
    return {
        "TFDDL_CUDA_LIBRARY": str(doubles / "libtfddl_fake_cuda.so"),
        "TFDDL_NCCL_LIBRARY": str(doubles / "libtfddl_fake_nccl.so"),
        "TFDDL_TEST_GPU_PLUGIN": str(doubles / "libtfddl_fake_gpu.so"),
    }


@pytest.fixture
def on_doubles(doubles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that the test starts see the doubles."""
    for name, value in variables_of(doubles).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def run_on_gpus(doubles: Path) -> Callable[..., ScriptResult]:
    """Runs a script on so many ranks, of which each has a GPU; `settings` are the doubles' (tests/double/control.h)."""

    def run(ranks: int, script: str | Path, *arguments: str, **settings: object) -> ScriptResult:
        environment = {
            **variables_of(doubles),
            **{f"TFDDL_FAKE_{name.upper()}": str(value) for name, value in settings.items()},
        }
        return run_script(ranks, script, *arguments, limit=LIMIT, environment=environment)

    return run
