"""Temporary directories for the intermediate files of a build. A build removes the directories of killed builds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX, _LOCK = "tfddl-build-", "in-use"


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Makes a directory for the time of a build, and removes this user's directories of dead processes."""
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, open(f"{name}/new", "w") as lock:
        # On a file system without locks the directory of a killed build stays: nothing shows that the build is dead.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(lock.name, f"{name}/{_LOCK}")  # under this name the file is always locked, where it can be
        yield Path(name)


def _remove_abandoned() -> None:
    """Removes directories without a lock: the kernel drops the lock of a dead process, in other containers too."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), lock.open() as file:
            if lock.parent.lstat().st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)
