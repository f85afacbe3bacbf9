"""The option --output-filename: a folder for each rank, with what that rank has written, byte for byte."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path


class RankFiles:
    """The files `rank.N/stdout` and `rank.N/stderr` below one folder. N has the digits of the last of `most` ranks.

    Args:
        folder: Where they are. Files of an earlier job are replaced.
        processes: The number of ranks at the start.
        most: The number of ranks that the job may grow to.

    Raises:
        OSError: A file cannot be made.
    """

    def __init__(self, folder: Path, processes: int, most: int):
        self._folder, self._digits = folder, len(str(most - 1))
        self._files: dict[tuple[int, str], io.FileIO] = {}
        self.add(processes)

    def add(self, processes: int) -> None:
        """Makes the files that a start with so many processes needs besides.

        Raises:
            OSError: A file cannot be made. Output without a file is dropped.
        """
        for rank in range(processes):
            own = self._folder / f"rank.{rank:0{self._digits}d}"
            own.mkdir(parents=True, exist_ok=True)
            for stream in ("stdout", "stderr"):
                if (rank, stream) not in self._files:
                    # Without a buffer: a reader sees the newest line, and nothing is left to write where the disk is full.
                    self._files[rank, stream] = io.FileIO(own / stream, "wb")

    def write(self, rank: int, stream: str, data: bytes) -> str:
        """Writes bytes of a rank.

        Returns:
            A sentence if that failed. The file is closed then, and the rest of its output is dropped.
        """
        file = self._files.get((rank, stream))
        if file is None or file.closed:
            return ""
        try:
            while data:
                data = data[file.write(data) :]
        except OSError as error:  # a full disk must not end a training of days
            with contextlib.suppress(OSError):
                file.close()
            return f"cannot write to {file.name}, so its output ends here; the job goes on. Received: {error.strerror}"
        return ""

    def close(self) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()
