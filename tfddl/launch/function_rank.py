"""One rank of `function.run_function`: `python -m tfddl.launch.function_rank DIRECTORY`."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import cloudpickle

from tfddl.launch.function import CALL, RESULT
from tfddl.launch.rank_shim import RANK_VARIABLES


def main(directory: Path) -> None:
    """Calls the function and writes its result."""
    rank = next(os.environ[name] for name in RANK_VARIABLES if name in os.environ)
    function, args, kwargs = pickle.loads((directory / CALL).read_bytes())
    (directory / RESULT.format(rank)).write_bytes(cloudpickle.dumps(function(*args, **kwargs)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
