"""Commits in files: they outlive the processes, so that a job that starts again goes on from the newest.

Each host has a folder of its own, in memory, where its first rank writes. The folder of `tfddlrun --state-dir` is on a disk,
and rank 0 writes there. A file's name holds the number of the commit and the checksum of its content. A file gets its name
when it is complete, and the last two stay.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import cloudpickle

from tfddl.launch.rank_shim import COMMITS_VARIABLE, STATE_VARIABLE
from tfddl.runtime import basics
from tfddl.runtime.log import warn_on_each_host

_NAME = re.compile(r"commit-(\d+)-([0-9a-f]{8})")
_kinds: Counter[str] = Counter()

_FORM = "tfddl commit 1"
"""Begins each commit. Another number is for a tfddl that keeps other content, and does not read this."""


class Commits:
    """The commits in a folder.

    Args:
        folder: Where they lie. It is made if it does not exist.
        on_disk: Whether all hosts share the folder, and a commit has to outlive them.
    """

    def __init__(self, folder: Path, on_disk: bool = False) -> None:
        self._folder, self._on_disk = folder, on_disk

    @staticmethod
    def are_kept() -> bool:
        """Whether `tfddlrun --elastic` has started the job."""
        return bool(os.environ.get(COMMITS_VARIABLE))

    @classmethod
    def of_state(cls, kind: str) -> list[Commits]:
        """Makes room for one more state, in memory and perhaps on a disk.

        Args:
            kind: The name of states of this kind. States of one kind are told apart by their order.

        Returns:
            The commits of the state; none if `tfddlrun --elastic` has not started the job.
        """
        given = [os.environ.get(name) for name in (COMMITS_VARIABLE, STATE_VARIABLE)]
        if not given[0]:
            return []
        _kinds[kind] += 1
        name = f"{zlib.crc32(kind.encode()):08x}-{_kinds[kind]}"
        return [
            cls(Path(folder, name), on_disk)
            for folder, on_disk in zip(given, (False, True), strict=True)
            if folder
        ]

    @property
    def are_written_here(self) -> bool:
        """Whether this rank writes them: the first of the host, or of the job if all hosts share the folder."""
        return (basics.rank() if self._on_disk else basics.local_rank()) == 0

    def write(self, number: int, content: Any) -> None:
        """Keeps a commit, on the rank that writes. If there is no room, a warning says so, and older ones stay.

        Files with this number or a larger one are removed. Their rank died after a commit that the others have not made, or
        their content is not whole.

        Args:
            number: Its number.
            content: What cloudpickle takes.

        Raises:
            TypeError: cloudpickle does not take it.
        """
        if not self.are_written_here:
            return
        part = self._folder / "part"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            files = self._complete()
            older = [each for each in files if each[0] < number]
            for each in files:
                if each not in older[:1]:
                    self._path(*each).unlink()
            with part.open("wb") as file:
                writer = _Checked(file)
                cloudpickle.dump((_FORM, content), writer, protocol=5)
                if self._on_disk:
                    file.flush()
                    os.fsync(file.fileno())
            part.rename(self._path(number, f"{writer.checksum:08x}"))
        except (TypeError, pickle.PicklingError) as error:
            raise _not_pickled(error) from error
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            warn_on_each_host(
                f"Commit {number} could not be kept, so a job that starts again goes on from an older one, or from the "
                f"beginning: make room in {self._folder.parent}. Received: {error}"
            )

    def keep_newest(self) -> None:
        """Removes the older commits, on the rank that writes."""
        if self.are_written_here:
            with contextlib.suppress(OSError):  # they only take room
                for old in self._complete()[1:]:
                    self._path(*old).unlink(missing_ok=True)

    def newest_number(self) -> int:
        """The number of the newest commit whose content is whole; 0 if there is none."""
        return next((number for number, checksum in self._complete() if self._is_whole(number, checksum)), 0)

    def read(self, number: int) -> Any:
        """The content of a commit that `newest_number` has found.

        Raises:
            ValueError: Another version of tfddl has written it.
        """
        path = self._path(number, dict(self._complete())[number])
        with path.open("rb") as file:
            form, content = pickle.load(file)
        if form != _FORM:
            raise ValueError(
                "Another version of tfddl has written the commit: use that version, or start anew with another "
                f"--state-dir. Received: {path}"
            )
        return content

    def _complete(self) -> list[tuple[int, str]]:
        """Numbers and checksums of the files, the newest first."""
        names = os.listdir(self._folder) if self._folder.is_dir() else []
        found = (_NAME.fullmatch(name) for name in names)
        return sorted(((int(match[1]), match[2]) for match in found if match), reverse=True)

    def _is_whole(self, number: int, checksum: str) -> bool:
        try:
            with self._path(number, checksum).open("rb") as file:
                found = 0
                while block := file.read(1 << 20):
                    found = zlib.crc32(block, found)
        except OSError:
            return False
        return f"{found:08x}" == checksum

    def _path(self, number: int, checksum: str) -> Path:
        return self._folder / f"commit-{number}-{checksum}"


def pickled(content: Any) -> bytes:
    """The content of a commit as bytes.

    Raises:
        TypeError: cloudpickle does not take it.
    """
    try:
        return bytes(cloudpickle.dumps(content, protocol=5))
    except (TypeError, pickle.PicklingError) as error:
        raise _not_pickled(error) from error


def _not_pickled(error: Exception) -> TypeError:
    return TypeError(
        "A commit takes what cloudpickle takes: leave locks, files and generators out of the state. "
        f"Received: {error}"
    )


class _Checked:
    """Writes to a file, and computes the checksum of what it writes."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.checksum = 0

    def write(self, data: Any) -> None:
        self.checksum = zlib.crc32(data, self.checksum)
        self._file.write(data)
