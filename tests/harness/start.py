"""The command that starts a rank's Python: afresh, or as a fork of a process that has TensorFlow imported already."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.harness.job import RANK_ENVIRONMENT, SEARCH_PATH
from tests.harness.mpirun import dying_with_parent

START_LIMIT = 120.0
"""Seconds that the server gets for its imports, on a busy machine."""

READ_BY_IMPORTS = (
    "TF_",
    "KERAS_",
    "XLA_",
    "CUDA_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "LD_",
    "MALLOC_",
    "GLIBC_",
)
"""Beginnings of the variables that Python, TensorFlow or Keras read while they are imported."""


def python_command(
    arguments: list[str], environment: Mapping[str, str | None] | None = None, fresh: bool = False
) -> list[str]:
    """The command line that runs a script, or `-m` and a module, with its arguments.

    Args:
        arguments: Those of `python`.
        environment: The variables that the job adds to those of this process.
        fresh: Starts Python itself: the test is about the start, the death or the end of a process.
    """
    if fresh or any(name.startswith(READ_BY_IMPORTS) for name in environment or ()):
        return [sys.executable, *arguments]
    client = Path(__file__).with_name("fork_client.py")
    return [sys.executable, "-I", "-S", str(client), _server(), *arguments]


@functools.cache
def _server() -> str:
    """The socket of this process' fork server, which ends with this process."""
    directory = tempfile.TemporaryDirectory(prefix="tfddl-test-", ignore_cleanup_errors=True)
    address, log = Path(directory.name) / "socket", Path(directory.name) / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            dying_with_parent([sys.executable, "-m", "tests.harness.fork_server", str(address)]),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, **RANK_ENVIRONMENT, "PYTHONPATH": SEARCH_PATH},
            start_new_session=True,
        )

    def end() -> None:
        server.kill()
        server.wait()
        directory.cleanup()

    atexit.register(end)
    deadline = time.monotonic() + START_LIMIT
    while not address.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"The fork server has not started:\n{log.read_text(errors='replace')}")
        time.sleep(0.05)
    return str(address)
