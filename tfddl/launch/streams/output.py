"""Merges the output of all ranks into one stream of lines.

A line is written when it is complete, with its rank before it, so lines of two ranks never mix. A progress bar is a line
that a program draws again and again: text after a carriage return, or without an end. On a terminal it is redrawn at the
bottom. A file or a pipe gets its last state, and one state every ten seconds as a sign of life.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import time
from collections.abc import Callable
from typing import BinaryIO

_SIGN_OF_LIFE_S = 10.0
_LONGEST_LINE = 1 << 20
_ERASE_LINE = b"\r\x1b[K"
_COLOR = re.compile(r"(\x1b\[[0-9;]*m)")


class Output:
    """Writes the output of the ranks to tfddlrun's stdout and stderr.

    Args:
        stdout: binary file without a buffer.
        stderr: binary file without a buffer.
        prefixed: whether each line starts with its rank. If not, bytes pass unchanged.
        columns: int, width of the terminal.
        clock: function that gives seconds.
        stamp: function that gives the time as text, which then precedes the rank. None: no time.
    """

    def __init__(
        self,
        stdout: BinaryIO,
        stderr: BinaryIO,
        *,
        prefixed: bool,
        columns: int = 80,
        clock: Callable[[], float] = time.monotonic,
        stamp: Callable[[], str] | None = None,
    ):
        self._files = {"stdout": stdout, "stderr": stderr}
        self._terminals = {name for name, file in self._files.items() if file.isatty()}
        self._prefixed = prefixed
        self._columns = columns
        self._clock = clock
        self._stamp = stamp
        self._pending: dict[tuple[int, str], bytes] = {}
        self._last_sign: dict[tuple[int, str], float] = {}
        # The rank and stream of the unfinished line on the terminal.
        self._drawn: tuple[int, str] | None = None
        self._lossy: set[str] = set()
        self._ends_within_a_line = False
        # Waits until a file takes bytes. If this function returns False, the rest of the data is dropped.
        self.may_write: Callable[[BinaryIO], bool] = lambda _: True

    def write(self, rank: int, stream: str, data: bytes) -> None:
        """Writes bytes that a rank wrote to "stdout" or "stderr"."""
        if not self._prefixed:
            self._emit(stream, data)
            return
        source = (rank, stream)
        *lines, rest = (self._pending.get(source, b"") + data).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        done = b"".join(self._prefix(rank, visible(line)) + b"\n" for line in lines)
        state = visible(rest)
        # Text before a carriage return is obsolete. The return itself is kept, to tell a progress bar.
        self._pending[source] = state + b"\r" if rest.endswith(b"\r") else state
        if stream in self._terminals:
            self._erase()
            self._emit(stream, done)
            if state or self._drawn == source:
                self._drawn = source if state else None
            self._draw()
        else:
            if b"\r" in rest and self._is_time_for_a_sign(source):
                done += self._prefix(rank, state) + b"\n"
            self._emit(stream, done)

    def message(self, text: str) -> None:
        """Writes a message of tfddlrun to stderr."""
        self._erase()
        end_of_line = b"\n" if self._ends_within_a_line else b""
        self._emit("stderr", end_of_line + text.encode(errors="replace") + b"\n")
        self._draw()

    def raw(self, stream: str, data: bytes) -> None:
        """Writes bytes that belong to no rank."""
        self._erase()
        self._drawn = None
        self._emit(stream, data)

    def finish(self) -> None:
        """Writes the unfinished lines of all ranks."""
        self._erase()
        self._drawn = None
        for (rank, stream), rest in sorted(self._pending.items()):
            # The other stream may still have a reader.
            with contextlib.suppress(BrokenPipeError):
                if state := visible(rest):
                    self._emit(stream, self._prefix(rank, state) + b"\n")
        self._pending.clear()

    def _prefix(self, rank: int, line: bytes) -> bytes:
        time_of_day = f"{self._stamp()} " if self._stamp else ""
        prefix = f"{time_of_day}[{rank}]".encode()
        return b"%s %s" % (prefix, line) if line else prefix

    def _erase(self) -> None:
        """Removes the unfinished line from the terminal, so that whole lines can be written above it."""
        if self._drawn is not None:
            self._emit(self._drawn[1], _ERASE_LINE)

    def _draw(self) -> None:
        if self._drawn is not None:
            line = self._prefix(self._drawn[0], visible(self._pending[self._drawn]))
            self._emit(self._drawn[1], self._fitted(line))

    def _fitted(self, line: bytes) -> bytes:
        """Cuts a line to the terminal's width, without counting colours: a wrapped line cannot be erased."""
        room = self._columns - 1
        pieces = _COLOR.split(line.decode(errors="replace"))
        for index in range(0, len(pieces), 2):
            pieces[index] = pieces[index][:room]
            room -= len(pieces[index])
        return "".join(pieces).encode()

    def _is_time_for_a_sign(self, source: tuple[int, str]) -> bool:
        now = self._clock()
        due = now - self._last_sign.setdefault(source, now) >= _SIGN_OF_LIFE_S
        if due:
            self._last_sign[source] = now
        return due

    def _emit(self, stream: str, data: bytes) -> None:
        try:
            self._write(self._files[stream], data)
        except BrokenPipeError:
            # The rest of the buffer goes to the null device, or Python would fail on it again at exit.
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), self._files[stream].fileno())
            raise
        except OSError as error:  # a full disk, for example: it must not end a training of days
            self._warn_of_loss(stream, error)

    def _write(self, file: BinaryIO, data: bytes) -> None:
        rest = memoryview(data)
        while rest and self.may_write(file):
            # A pipe with room takes as many bytes without a wait. None: another process has taken the room.
            rest = rest[file.write(rest[: select.PIPE_BUF]) or 0 :]
        written = data[: len(data) - len(rest)]
        if written:
            self._ends_within_a_line = bool(rest) and not written.endswith(b"\n")

    def _warn_of_loss(self, stream: str, error: OSError) -> None:
        if stream in self._lossy:
            return
        self._lossy.add(stream)
        other = "stderr" if stream == "stdout" else "stdout"
        self._emit(
            other,
            f"tfddlrun: cannot write to {stream}, so output of the ranks is lost; the job goes on. "
            f"Received: {error.strerror}\n".encode(),
        )


def open_standard_streams() -> None:
    """Opens the null device in place of streams that are closed, as after `>&-`: a connection would get their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def visible(line: bytes) -> bytes:
    """The part of a line that a terminal shows: the text after the last carriage return that is followed by text."""
    states = line.replace(b"\b", b"").split(b"\r")
    return next((state for state in reversed(states) if state), b"")
