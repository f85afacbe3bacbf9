"""Runs in an environment with the wheel: is there no compiler, is the import fast, does the quickstart's script train?

This file needs only the standard library. It prints one line of JSON.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = ("g++", "gcc", "cc", "c++", "clang++", "make", "cmake")
IMPORT_LIMIT = 0.3
TRAIN_LIMIT = 600
# How many times longer everything may take where another processor emulates this one.
EMULATION = 50
IMPORT = """
import sys, time
began = time.perf_counter()
import tfddl
seconds = time.perf_counter() - began
assert "tensorflow" not in sys.modules, "import tfddl has imported TensorFlow"
print(seconds)
"""


def main(quickstart: Path, slowness: int) -> None:
    """Checks, and prints what was found; a check that fails raises.

    Args:
        quickstart: path of docs/guides/quickstart.md.
        slowness: int, a factor of all limits.
    """
    check_tools()
    assert importlib.util.find_spec("cmake") is None, "the package cmake is installed"
    seconds = min(float(_python("-c", IMPORT, limit=120 * slowness)) for _ in range(3))
    assert seconds < IMPORT_LIMIT * slowness, f"import tfddl takes {seconds:.2f} s"
    with tempfile.TemporaryDirectory() as directory:
        accuracy = train(quickstart, Path(directory), TRAIN_LIMIT * slowness)
    mpi = "from mpi4py import MPI; print(MPI.Get_library_version())"
    vendor = re.search(r"Open MPI v[\d.]+|MPICH Version:\s+[\d.]+", _python("-c", mpi, limit=120 * slowness))
    assert vendor, "neither Open MPI nor MPICH"
    found = {
        "system": _system(),
        "python": platform.python_version(),
        "tensorflow": _tensorflow(),
        "mpi": re.sub(r" v| Version:\s+", " ", vendor[0]),
        "import_seconds": round(seconds, 2),
        "accuracy": accuracy,
    }
    print(json.dumps(found))


def check_tools() -> None:
    """Raises if there is a compiler."""
    tools = [tool for tool in TOOLS if shutil.which(tool)]
    assert not tools, f"there is a compiler here: {tools}"


def train(quickstart: Path, directory: Path, limit: float = TRAIN_LIMIT) -> float:
    """Runs the quickstart's script on two ranks, with a cache of its own.

    Args:
        quickstart: path of docs/guides/quickstart.md.
        directory: where to work.
        limit: float, seconds.

    Returns:
        Float, the accuracy after the last epoch.
    """
    example = re.search(r"```python\n(.*?)```", quickstart.read_text(), re.DOTALL)
    assert example and "load_digits" in example[1]
    script, cache = directory / "train.py", directory / "cache"
    script.write_text(example[1])
    command = [str(Path(sys.executable).parent / "tfddlrun"), "-np", "2", sys.executable, str(script)]
    environment = {**os.environ, "TFDDL_CACHE_DIR": str(cache), "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=limit, env=environment, cwd=directory
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "compiling" not in output and not list(cache.glob("*.so")), "the library of the wheel was not used"
    for rank in range(2):
        assert re.search(rf"^\[{rank}\] largest difference between ranks: 0\.0$", output, re.MULTILINE), (
            output
        )
    accuracy = float(re.findall(r"accuracy: ([\d.]+)", output)[-1])
    assert accuracy > 0.9, output
    return accuracy


def _system() -> str:
    release = platform.freedesktop_os_release()
    system = f"{release['ID'].capitalize()} {release['VERSION_ID']}, glibc {platform.libc_ver()[1]}"
    return system if platform.machine() == "x86_64" else f"{system}, {platform.machine()}"


def _tensorflow() -> str:
    (name,) = importlib.metadata.packages_distributions()["tensorflow"]
    return importlib.metadata.version(name)


def _python(*arguments: str, limit: float) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=limit)
    assert done.returncode == 0, done.stderr
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]), EMULATION if "emulated" in sys.argv[2:] else 1)
