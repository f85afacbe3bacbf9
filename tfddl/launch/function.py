"""Runs a Python function on several processes, and collects its results."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

CALL, RESULT = "call.pkl", "result.{}.pkl"


def run_function(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], options: Sequence[str]
) -> list[Any]:
    """Calls `function(*args, **kwargs)` on each rank of a job.

    Function, arguments and results travel in files of a directory below the working directory, which all hosts of a job
    share.

    Args:
        function: May come from a notebook, or be a lambda.
        args: Arguments.
        kwargs: Arguments by name.
        options: Those of tfddlrun.

    Returns:
        The results, by rank.

    Raises:
        RuntimeError: A rank has failed. Its error has been printed.
    """
    with tempfile.TemporaryDirectory(prefix=".tfddlrun-", dir=".") as directory:
        path = Path(directory).resolve()
        (path / CALL).write_bytes(cloudpickle.dumps((function, tuple(args), dict(kwargs))))
        command = [sys.executable, "-m", "tfddl.launch.run", *options]
        code = subprocess.run(
            [*command, sys.executable, "-m", "tfddl.launch.function_rank", str(path)], check=False
        ).returncode
        if code:
            raise RuntimeError(
                f"The job of {getattr(function, '__name__', function)!r} ended with exit code {code}; "
                "its last lines say why."
            )
        count = len(list(path.glob(RESULT.format("*"))))
        return [pickle.loads((path / RESULT.format(rank)).read_bytes()) for rank in range(count)]
