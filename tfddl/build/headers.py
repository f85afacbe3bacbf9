"""Whether the headers of an installed TensorFlow are those that a packaged library was compiled with.

A library fits every TensorFlow that has the same headers: a later patch release, or a build by somebody else. The manifest
of a wheel names the headers that the compiler has read, and their hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tfddl.build.cache import cache_directory
from tfddl.build.compile import CompileError

PREFIX = "headers-"
"""How the files begin that remember an answer in the cache."""


@dataclass(frozen=True)
class Headers:
    """The headers that one library was compiled with.

    Attributes:
        names: strings, paths in TensorFlow's include directory, sorted.
        digest: string, the `hash_headers` of these files.
    """

    names: tuple[str, ...]
    digest: str


def hash_headers(include: Path, names: Iterable[str]) -> str | None:
    """Hashes names and contents of headers.

    Args:
        include: TensorFlow's include directory.
        names: strings, paths in it.

    Returns:
        String of 64 hexadecimal digits, or None if a header is missing.
    """
    digest = hashlib.sha256()
    for name in names:
        try:
            content = (include / name).read_bytes()
        except OSError:
            return None
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def fits(directory: Path, version: str, headers: Headers) -> bool:
    """Whether a TensorFlow has these headers, byte for byte.

    The cache remembers the answer, since a network file system may take seconds for a thousand files. Without a cache that
    can be written each process reads the headers again.

    Args:
        directory: the directory of the package `tensorflow`.
        version: string, its version.
        headers: those that the library was compiled with.

    Returns:
        Bool.
    """
    note = _note(directory, version, headers)
    if note:
        with contextlib.suppress(OSError):
            return note.read_text() == "equal"
    equal = hash_headers(directory / "include", headers.names) == headers.digest
    if note:
        _remember(note, "equal" if equal else "different")
    return equal


def _note(directory: Path, version: str, headers: Headers) -> Path | None:
    """The file of the cache for this answer. None where there is nowhere to keep it, or nothing to know it by."""
    try:
        library = os.stat(directory / "libtensorflow_framework.so.2")
        cache = cache_directory()
    except (OSError, CompileError):
        return None
    known_by = (os.path.realpath(directory), version, library.st_size, library.st_mtime_ns, headers.digest)
    return cache / f"{PREFIX}{hashlib.sha256(repr(known_by).encode()).hexdigest()[:16]}"


def _remember(note: Path, answer: str) -> None:
    partial = note.with_name(f".{note.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(answer)
        partial.replace(note)
