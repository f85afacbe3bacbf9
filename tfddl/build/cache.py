"""The user's cache of compiled libraries: each is built once, however many processes ask at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from tfddl.build.compile import CompilationFailed, CompileError

LEAST_MB = 10
"""Megabytes of free space that the cache needs for both libraries, the parts of a copy, and logs of the compiler."""

# Libraries, their locks, failures and logs; remembered headers; a part of a library or of remembered headers, which a
# killed process has left. The names are exact, since TFDDL_CACHE_DIR may name a directory with files of the user.
_STEM = r"tfddl(_xla)?-tf[\w.+-]+-[0-9a-f]{12}"
_OURS = re.compile(
    rf"lib{_STEM}\.(so|lock|failed)|{_STEM}\.log|headers-[0-9a-f]{{16}}|\.(lib{_STEM}\.so|headers-[0-9a-f]{{16}})\.\d+"
)
# The magic number, the offset of the program headers, and their number.
_ELF64 = struct.Struct("<4s28xQ16xH6x")
# The offset of the bytes that are loaded, and their number.
_PROGRAM_HEADER = struct.Struct("<8xQ16xQ16x")


def cache_directory() -> Path:
    """Returns `TFDDL_CACHE_DIR`, which defaults to `$XDG_CACHE_HOME/tfddl` and so to `~/.cache/tfddl`.

    Raises:
        CompileError: no variable names a directory, and the user has no home.
    """
    named = os.environ.get("TFDDL_CACHE_DIR")
    try:
        if named:
            return Path(named).expanduser().resolve()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "tfddl"
    except RuntimeError as error:
        raise CompileError(
            "tfddl has no directory for its cache, since this user has no home; set TFDDL_CACHE_DIR to a directory "
            f"that can be written. Received: {error}"
        ) from None


def is_noexec(directory: Path) -> bool:
    """Whether a directory's file system is mounted noexec, so that no library in it can be loaded."""
    return bool(os.statvfs(directory).f_flag & os.ST_NOEXEC)


def clear_cache() -> tuple[Path, list[Path]]:
    """Removes tfddl's files from the cache, and the directory if nothing else is in it.

    Returns:
        Tuple of the directory and the removed files.

    Raises:
        CompileError: see `cache_directory`.
        OSError: a file cannot be removed.
    """
    directory = cache_directory()
    removed = sorted(path for path in directory.glob("*") if _OURS.fullmatch(path.name))
    for path in removed:
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # there is none, or TFDDL_CACHE_DIR names one with other files
        directory.rmdir()
    return directory, removed


def cached_or_built(library: Path, build: Callable[[], object], once: bool = False) -> Path:
    """Returns a library from the cache. If it is missing, one process builds it and the others wait.

    Args:
        library: path of the library.
        build: function that makes `library` or raises `CompileError`.
        once: whether a failed build is not tried again until `forget_failure(library)`.

    Returns:
        `library`.

    Raises:
        CompileError: the build failed in this process or in the process that built meanwhile, or (with `once`) before.
    """
    if is_whole(library):
        return library
    asked = time.time()
    with contextlib.ExitStack() as held:
        with _writing_to(library.parent):
            library.parent.mkdir(parents=True, exist_ok=True)
            if not os.access(library.parent, os.W_OK | os.X_OK):
                raise PermissionError("no permission")
            lock = held.enter_context(locked(library.with_suffix(".lock")))
        if is_whole(library):
            return library
        _raise_failure_since(asked, lock)
        if once and (before := failure(library)):
            raise CompileError(f"{before} This attempt was not repeated. Run `tfddl build` to try again.")
        try:
            with _writing_to(library.parent):
                build()
        except Exception as error:
            with contextlib.suppress(OSError):  # a full disk has no room for the reason either
                _record_failure(lock, str(error))
                if once and isinstance(error, CompilationFailed):
                    _failed(library).write_text(str(error))
            raise
    return library


def is_whole(library: Path) -> bool:
    """Whether a library can be read and is complete. Loading a truncated library ends in a SIGBUS.

    An ELF file says in its program headers which of its bytes are loaded (elf(5)).
    """
    try:
        content = library.read_bytes()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    try:
        magic, headers_at, count = _ELF64.unpack_from(content)
        headers = [
            _PROGRAM_HEADER.unpack_from(content, headers_at + i * _PROGRAM_HEADER.size) for i in range(count)
        ]
    except struct.error:  # not even the headers are there
        return False
    return magic == b"\x7fELF" and all(offset + size <= len(content) for offset, size in headers)


def failure(library: Path) -> str:
    """Why `cached_or_built(library, ..., once=True)` does not build; empty if it would."""
    failed = _failed(library)
    return failed.read_text() if failed.is_file() else ""


def forget_failure(library: Path) -> None:
    """Makes the next `cached_or_built(library, ..., once=True)` build again after a failure."""
    with contextlib.suppress(OSError):  # cached_or_built() names the directory
        _failed(library).unlink(missing_ok=True)


def _failed(library: Path) -> Path:
    return library.with_suffix(".failed")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[IO[bytes]]:
    """Holds an exclusive lock on a file, which is made if it is missing.

    The kernel drops the lock when the process dies, so a killed build blocks no other.

    Args:
        path: path of the lock file.

    Yields:
        The open file, without a buffer: closing it writes nothing, which would fail on a full disk.
    """
    with path.open("ab+", buffering=0) as lock:
        # Some network file systems have no locks. Then every process builds, and the last rename of a library wins:
        # slower, but right.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


@contextlib.contextmanager
def _writing_to(directory: Path) -> Iterator[None]:
    """Turns an error of the file system into one that names the directory, unless it names a file elsewhere."""
    try:
        yield
    except OSError as error:
        # mkdir() names a folder above, and a copy the file that it reads as well.
        named = [Path(os.fsdecode(each)) for each in (error.filename, error.filename2) if each]
        if named and not any(one.is_relative_to(directory) or directory.is_relative_to(one) for one in named):
            raise
        raise CompileError(
            f"tfddl cannot write its native library to {directory}; set TFDDL_CACHE_DIR to a directory that "
            f"can be written and has {LEAST_MB} MB free. Received: {error}"
        ) from None


def _record_failure(lock: IO[bytes], message: str) -> None:
    """Leaves the message in the lock file, so that the waiting processes do not build and fail one after the other."""
    lock.seek(0)
    lock.truncate()
    lock.write(f"{time.time()}\n{message}".encode())


def _raise_failure_since(asked: float, lock: IO[bytes]) -> None:
    lock.seek(0)
    failed, _, message = lock.read().decode(errors="replace").partition("\n")
    if failed and float(failed) >= asked:
        raise CompileError(message)
