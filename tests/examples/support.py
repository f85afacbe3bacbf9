"""Modules beside the examples and the benchmarks, which are no packages."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


@contextlib.contextmanager
def imported(directory: Path, name: str) -> Iterator[ModuleType]:
    """A module of the directory, imported as the scripts beside it import it."""
    sys.path.insert(0, str(directory))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(directory))
        sys.modules.pop(name, None)
