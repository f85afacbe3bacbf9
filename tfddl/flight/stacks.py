"""Reads the stacks that Python's faulthandler writes, and groups the ranks with equal ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import tfddl

_THREAD = re.compile(
    r"(?P<current>Current thread|Thread) (?P<id>0x[0-9a-f]+)(?: \[(?P<name>.*)\])? \(most recent call"
)
_FRAME = re.compile(r'  File "(?P<path>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_STANDARD = re.compile(r".*/lib(?:64)?/python3\.\d+/")
_AUTOGRAPH = re.compile(r".*/__autograph_generated_file[^/]*\.py")
_OURS = Path(tfddl.__file__).parent
_FAILURE = "/tfddl/runtime/failure.py"
_WRITER = "/tfddl/runtime/flight_record.py"  # its thread writes the stacks
_SHOWN = 3  # the last parts of a path


@dataclass(frozen=True)
class Frame:
    """One call of a stack."""

    path: str
    line: str
    function: str

    @cached_property
    def package(self) -> str:
        """The library that the code is of: "keras", "tfddl", "Python"; empty for the user's own code."""
        if match := _PACKAGES.match(self.path):
            return self.path[match.end() :].split("/")[0].removesuffix(".py")
        if _AUTOGRAPH.fullmatch(self.path):
            return "tensorflow"
        _, ours, inside = self.path.rpartition("/tfddl/")
        if ours and (_OURS / inside).exists():
            return "tfddl"
        return "Python" if _STANDARD.match(self.path) or self.path.startswith("<") else ""

    @cached_property
    def place(self) -> str:
        """A short path with the line: "train.py:30"."""
        if _AUTOGRAPH.fullmatch(self.path):
            return f"<autograph>:{self.line}"  # the name of the file differs by rank
        for pattern in (_PACKAGES, _STANDARD):
            if match := pattern.match(self.path):
                return f"{self.path[match.end() :]}:{self.line}"
        parts = self.path.split("/")
        short = "/".join(parts[-_SHOWN:]) if len(parts) > _SHOWN + 1 else self.path
        return f"{short}:{self.line}"

    @property
    def text(self) -> str:
        """The place and the function."""
        return f"{self.place} in {self.function}"


@dataclass(frozen=True)
class Thread:
    """The stack of one thread, the innermost call first."""

    title: str
    frames: tuple[Frame, ...]

    @property
    def user_frame(self) -> Frame | None:
        """The innermost call of the user's own code."""
        return next((frame for frame in self.frames if not frame.package), None)


def parse(text: str) -> list[Thread]:
    """The threads of a record, in the order of faulthandler, which writes the main thread last."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if match := _THREAD.match(line):
            threads.append((match["name"] or f"thread {match['id']}", []))
        elif threads and (match := _FRAME.match(line)):
            threads[-1][1].append(Frame(match["path"], match["line"], match["function"]))
    return [
        Thread(title, tuple(frames))
        for title, frames in threads
        if not any(frame.path.endswith(_WRITER) for frame in frames[:1])
    ]


def main_thread(text: str) -> Thread | None:
    """The main thread of a record. None without stacks, or where faulthandler left it out, after 100 others."""
    if text.rstrip().endswith("\n..."):
        return None
    threads = parse(text)
    return threads[-1] if threads else None


def has_raised(text: str) -> bool:
    """Whether the main thread has ended with an exception: `tfddl.runtime.failure` then writes the record."""
    thread = main_thread(text)
    return thread is not None and any(frame.path.endswith(_FAILURE) for frame in thread.frames[:1])


def where(text: str) -> str:
    """The innermost call of the user's code in the main thread, else the innermost call; empty without stacks."""
    thread = main_thread(text)
    if thread is None or not thread.frames:
        return ""
    if has_raised(text):
        return "an exception has ended it"
    return (thread.user_frame or thread.frames[0]).text


def equal_stacks(texts: Mapping[int, str]) -> list[tuple[list[int], Thread]]:
    """The ranks with equal stacks of the main thread, and that stack; the largest groups last.

    Args:
        texts: What faulthandler wrote, by rank.
    """
    groups: dict[tuple[str, ...], tuple[list[int], Thread]] = {}
    for rank, text in texts.items():
        if thread := main_thread(text):
            key = tuple(frame.text for frame in thread.frames)
            groups.setdefault(key, ([], thread))[0].append(rank)
    return sorted(groups.values(), key=lambda group: (len(group[0]), group[0]))
