"""The folder that keeps the commits of an elastic job in the memory of each host, until the job ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def commits_folder() -> Iterator[Path]:
    """A path that each host has for itself; the ranks make the folder there. At the end it is removed from this host."""
    parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    path = parent / f"tfddl-commits-{uuid.uuid4().hex[:12]}"
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
