"""The files of a checkpoint: a folder for each checkpoint, and in it the part of each rank.

A part gets its name when it is complete and on the disk. A checkpoint is complete when all parts are there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

_FOLDER = re.compile(r"checkpoint-(\d+)-of-(\d+)-([0-9a-f]+)")
_ABOUT = "about"
_SECONDS_TO_SEE = 5.0  # a network file system may show a new file late
_locks: dict[Path, TextIO] = {}  # of the directories to which this process saves


@dataclass(frozen=True, order=True)
class Folder:
    """The folder of one checkpoint.

    Attributes:
        number: The number of the checkpoint; a later one has a higher number.
        ranks: The number of ranks that wrote it.
        token: Tells it from a folder that an earlier job has left.
        base: Where the folders of all checkpoints lie.
    """

    number: int
    ranks: int
    token: str
    base: Path

    @property
    def path(self) -> Path:
        """The folder."""
        return self.base / f"checkpoint-{self.number}-of-{self.ranks}-{self.token}"

    def part(self, rank: int) -> Path:
        """The file of a rank."""
        return self.path / f"rank-{rank}.npz"

    @property
    def is_complete(self) -> bool:
        """Whether all parts are there."""
        return all(self.part(rank).is_file() for rank in range(self.ranks))

    def write(self, rank: int, about: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes the part of a rank.

        Args:
            rank: The rank.
            about: A text in JSON.
            arrays: By key.

        Raises:
            OSError: There is no room, or no permission.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        growing = self.part(rank).with_suffix(".growing")
        content: dict[str, Any] = {_ABOUT: np.array(about), **arrays}
        try:
            with growing.open("wb") as file:
                np.savez(file, **content)
                file.flush()
                os.fsync(file.fileno())
            growing.rename(self.part(rank))
        except OSError:
            with contextlib.suppress(OSError):
                growing.unlink()
            raise


def complete_folders(base: Path) -> list[Folder]:
    """The complete checkpoints, the newest first."""
    return [folder for folder in _folders(base) if folder.is_complete]


def why_not_writable(base: Path) -> str:
    """Makes a directory. Returns why nothing can be written to it, or its files cannot be listed; empty if both can."""
    try:
        base.mkdir(parents=True, exist_ok=True)
        os.listdir(base)
        with tempfile.TemporaryFile(dir=base):
            return ""
    except OSError as error:
        return str(error)


def leave_mark(base: Path, token: str) -> None:
    """Makes an empty file, by which other ranks tell whether they see the same directory; removes old ones of killed jobs.

    Raises:
        OSError: There is no room, or no permission.
    """
    for old in base.glob(".shared-*"):
        with contextlib.suppress(OSError):
            if old.stat().st_mtime < time.time() - 3600:
                old.unlink()
    _mark(base, token).touch()


def remove_mark(base: Path, token: str) -> None:
    """Removes the file of `leave_mark`."""
    with contextlib.suppress(OSError):
        _mark(base, token).unlink()


def sees_mark(base: Path, token: str) -> bool:
    """Whether this rank sees the file of `leave_mark`."""
    end = time.monotonic() + _SECONDS_TO_SEE
    while not (seen := os.path.exists(_mark(base, token))) and time.monotonic() < end:
        time.sleep(0.1)
    return seen


def _mark(base: Path, token: str) -> Path:
    return base / f".shared-{token}"


def newest_number(base: Path) -> int:
    """The highest number of a checkpoint, complete or not; 0 if there is none."""
    return max((folder.number for folder in _folders(base)), default=0)


def another_job_saves(base: Path) -> bool:
    """Whether another job saves to a directory. If none does, this process keeps it until it ends."""
    base = base.resolve()
    if base in _locks:
        return False
    try:
        with contextlib.ExitStack() as stack:
            lock = stack.enter_context((base / ".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stack.pop_all()
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks, or without room
    _locks[base] = lock
    return False


def remove_old(base: Path, keep: int) -> None:
    """Removes the checkpoints that are older than the newest `keep` complete ones."""
    complete = complete_folders(base)
    if len(complete) >= keep:
        for folder in _folders(base):
            if folder.number < complete[keep - 1].number:
                shutil.rmtree(folder.path, ignore_errors=True)


def remove_failed(base: Path, number: int) -> None:
    """Removes incomplete checkpoints, but the two that ranks may still be writing: `number` and the one before."""
    for folder in _folders(base):
        if folder.number < number - 1 and not folder.is_complete:
            shutil.rmtree(folder.path, ignore_errors=True)


def _folders(base: Path) -> list[Folder]:
    names = os.listdir(base) if base.is_dir() else []
    found = (_FOLDER.fullmatch(name) for name in names)
    return sorted((Folder(int(each[1]), int(each[2]), each[3], base) for each in found if each), reverse=True)


def _opened(part: Path) -> Any:
    try:
        return np.load(part)
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise OSError(f"{part.name} is damaged: {error}") from None


class Parts:
    """The parts of one complete checkpoint, to be read. A context manager.

    Args:
        folder: Its folder.

    Raises:
        OSError: A part cannot be read.
    """

    def __init__(self, folder: Folder) -> None:
        self.ranks = folder.ranks
        with contextlib.ExitStack() as stack:
            self._files = [stack.enter_context(_opened(folder.part(rank))) for rank in range(folder.ranks)]
            self._close = stack.pop_all()
        self._names = [set(file.files) for file in self._files]

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *_: object) -> None:
        self._close.close()

    def about(self, rank: int) -> dict[str, Any]:
        """The object whose text `Folder.write` was given for a rank."""
        found: dict[str, Any] = json.loads(str(self._files[rank][_ABOUT]))
        return found

    def of_rank(self, key: str, rank: int) -> np.ndarray | None:
        """The array of one rank; None if it has none with this key."""
        return np.asarray(self._files[rank][key]) if key in self._names[rank] else None

    def with_prefix(self, prefix: str, rank: int) -> dict[str, np.ndarray]:
        """The arrays of one rank whose keys begin with `prefix`, by the rest of the key."""
        names = [name for name in self._names[rank] if name.startswith(prefix)]
        return {name.removeprefix(prefix): np.asarray(self._files[rank][name]) for name in names}

    def of_all(self, key: str) -> list[np.ndarray]:
        """The arrays with this key, in the order of the ranks that have one."""
        found = (self.of_rank(key, rank) for rank in range(self.ranks))
        return [each for each in found if each is not None]
