"""One rank of `function.run_function`: `python -m tfddl.launch.function_rank DIRECTORY`."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path

import cloudpickle

from tfddl.launch.function import CALL, ERROR, RESULT, SIZE
from tfddl.launch.rank_shim import RANK_VARIABLES, SIZE_VARIABLES


def main(directory: Path) -> None:
    """Calls the function and writes its result, or what it raises."""
    rank = next(os.environ[name] for name in RANK_VARIABLES if name in os.environ)
    size = next(os.environ[name] for name in SIZE_VARIABLES if name in os.environ)
    _write(directory / SIZE, size.encode(), f"{SIZE}.{rank}")
    try:
        function, args, kwargs = pickle.loads((directory / CALL).read_bytes())
        result = cloudpickle.dumps(function(*args, **kwargs))
    except Exception:
        _write(directory / ERROR.format(rank), traceback.format_exc().encode())
        raise
    _write(directory / RESULT.format(rank), result)


def _write(path: Path, content: bytes, other: str = "") -> None:
    # In two steps: the reader never sees a half of it.
    part = path.with_name(f".{other or path.name}")
    part.write_bytes(content)
    part.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
