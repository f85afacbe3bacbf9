"""The folders that keep the commits of an elastic job: in the memory of each host until the job ends, and on a disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

_STATE = re.compile(r"[0-9a-f]{8}-\d+")  # the folder of one state (`tfddl.elastic.commits`)
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


@contextlib.contextmanager
def state_folder(path: Path) -> Iterator[str]:
    """Keeps a folder of `--state-dir` for one job at a time.

    Yields:
        The error of the file system if it has no locks, so that another job may use the folder; else nothing.

    Raises:
        OSError: The folder cannot be made or written.
        ValueError: Another job uses it.
    """
    path.mkdir(parents=True, exist_ok=True)
    with (path / "lock").open("w") as lock:
        no_lock = ""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"Another job keeps its commits there: choose another folder. Received: {path}"
            ) from None
        except OSError as error:  # Lustre and NFS may be mounted so
            no_lock = str(error)
        yield no_lock


def forget(path: Path) -> None:
    """Removes the commits of a job that has ended well from the folder of `--state-dir`, which may be gone."""
    with contextlib.suppress(OSError):
        for child in path.iterdir():
            if _STATE.fullmatch(child.name):
                shutil.rmtree(child, ignore_errors=True)
