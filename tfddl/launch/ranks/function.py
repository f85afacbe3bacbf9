"""One rank of `function.run_function`: `python -m tfddl.launch.ranks.function DIRECTORY`."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle

from tfddl.launch import rank_shim
from tfddl.launch.function import CALL, ERROR, RESULT, SIZE


def main(directory: Path) -> None:
    """Calls the function and writes its result, or what it raises."""
    rank = rank_shim.rank()
    size = next(os.environ[name] for name in rank_shim.SIZE_VARIABLES if name in os.environ)
    _write(directory / SIZE, size.encode(), f"{SIZE}.{rank}")
    try:
        with (directory / CALL).open("rb") as call:
            path = pickle.load(call)
            sys.path += [each for each in path if each not in sys.path]  # modules beside the caller's script
            function, args, kwargs = pickle.load(call)
        result = _pickled(function, function(*args, **kwargs))
    except Exception as error:
        _fail(directory / ERROR.format(rank), error)
    _write(directory / RESULT.format(rank), result)


def _pickled(function: Callable[..., Any], result: Any) -> bytes:
    try:
        return cloudpickle.dumps(result)
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        raise TypeError(
            f"the result of {name} has to be pickled, to travel to the caller of run(): return numbers, NumPy arrays or "
            f"Keras models. Received: {type(result).__name__}, for which pickle raised {type(error).__name__}: {error}"
        ) from None


def _fail(path: Path, error: Exception) -> NoReturn:
    """Leaves the error to `run_function`, which raises it with its traceback; it need not be printed here as well."""
    frames = error.__traceback__ and error.__traceback__.tb_next  # less that of `main`
    text = "".join(traceback.format_exception(type(error), error, frames))
    try:
        pickled = cloudpickle.dumps(error.with_traceback(None))
        pickle.loads(pickled)
    except Exception:  # it holds a lock, a tensor, or wants other arguments
        pickled = None
    _write(path, pickle.dumps((text, pickled)))
    sys.exit(1)


def _write(path: Path, content: bytes, other: str = "") -> None:
    # In two steps: the reader never sees a half of it.
    part = path.with_name(f".{other or path.name}")
    part.write_bytes(content)
    part.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
