"""The cache: one build for many processes, one failure for all of them, and killed builds block no other."""

import importlib.util
import multiprocessing
import os
import resource
import signal
import time
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from tfddl.build import cache
from tfddl.build.cache import cache_directory, cached_or_built, forget_failure, is_whole, locked
from tfddl.build.compile import CompilationFailed, CompileError
from tfddl.build.sources import library_stem, xla_library_stem
from tfddl.cli import main

SPAWN = multiprocessing.get_context("spawn")
PROCESSES = 4

HEADER = "\x7fELF" + "\0" * 60
"""The header of a library without program headers, so that nothing is loaded from it."""

OTHERS = (
    "headers-of-my-thesis.txt",
    "tfddl-run-3.log",
    "tfddl-tf2.21-results.log",
    "libtfddl-notes-2026.so",
    ".headers-x",
)
"""Files of the user, in a directory that TFDDL_CACHE_DIR names."""


def _ask(directory: Path, fails: bool, outcomes: object) -> None:
    library, asked = directory / "cache" / "lib.so", directory / "asked"

    def count(path: Path) -> None:
        with path.open("a") as log:
            log.write(".")

    def counted(lock: Path) -> object:
        count(asked)
        return locked(lock)

    def build() -> None:
        count(directory / "builds")
        while asked.stat().st_size < PROCESSES:
            time.sleep(0.01)
        if fails:
            raise CompileError("the compiler is on strike")
        library.write_text(HEADER + "library")

    with mock.patch.object(cache, "locked", counted):
        try:
            outcomes.put(cached_or_built(library, build).read_text())  # type: ignore[attr-defined]
        except CompileError as error:
            outcomes.put(str(error))  # type: ignore[attr-defined]


def _ask_together(directory: Path, fails: bool) -> list[str]:
    """The outcomes of processes that all ask before the build ends."""
    outcomes = SPAWN.Queue()
    processes = [
        SPAWN.Process(target=_ask, args=(directory, fails, outcomes), daemon=True) for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    collected = [outcomes.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    return collected


def test_processes_that_ask_together_build_once(tmp_path: Path) -> None:
    assert _ask_together(tmp_path, fails=False) == [HEADER + "library"] * PROCESSES
    assert (tmp_path / "builds").read_text() == "."


def test_a_failure_reaches_all_who_wait_and_is_tried_again_later(tmp_path: Path) -> None:
    assert _ask_together(tmp_path, fails=True) == ["the compiler is on strike"] * PROCESSES
    assert (tmp_path / "builds").read_text() == "."
    library = tmp_path / "cache" / "lib.so"
    cached_or_built(library, lambda: library.write_text(HEADER + "mended"))
    assert library.read_text() == HEADER + "mended"


@pytest.mark.parametrize("kind", [CompilationFailed, CompileError])
def test_sources_that_do_not_compile_are_tried_once(tmp_path: Path, kind: type[CompileError]) -> None:
    """A missing compiler is not remembered: it may be there at the next start, and the check takes no time."""
    library, tries = tmp_path / "lib.so", []

    def build() -> None:
        tries.append(1)
        raise kind("the compiler is on strike")

    for _ in range(3):
        with pytest.raises(CompileError, match="on strike"):
            cached_or_built(library, build, once=True)
    assert len(tries) == (1 if kind is CompilationFailed else 3)
    with pytest.raises(CompileError, match="on strike") as caught:
        cached_or_built(library, build, once=True)
    assert ("Run `tfddl build` to try again" in str(caught.value)) == (kind is CompilationFailed)
    forget_failure(library)
    cached_or_built(library, lambda: library.write_text(HEADER + "mended"), once=True)
    assert library.read_text() == HEADER + "mended"


def _hold(lock: Path, held: object) -> None:
    with locked(lock):
        held.set()  # type: ignore[attr-defined]
        time.sleep(600)


def test_a_killed_build_blocks_nobody(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    held = SPAWN.Event()
    holder = SPAWN.Process(target=_hold, args=(library.with_suffix(".lock"), held))
    holder.start()
    assert held.wait(60)
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(60)
    assert cached_or_built(library, lambda: library.write_text(HEADER + "library")) == library


@pytest.mark.parametrize("left", [0.0, 0.001, 0.5])
def test_a_library_that_was_cut_short_is_built_again(tmp_path: Path, left: float) -> None:
    whole = Path(importlib.util.find_spec("numpy._core._multiarray_umath").origin)
    assert is_whole(whole)
    library = tmp_path / "lib.so"
    library.write_bytes(whole.read_bytes()[: int(left * whole.stat().st_size)])
    cached_or_built(library, lambda: library.write_text(HEADER + "library"))
    assert library.read_text() == HEADER + "library"


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("cache", "above/cache"):
        with pytest.raises(CompileError, match=rf"file/{folder}; set TFDDL_CACHE_DIR .* Received: "):
            cached_or_built(tmp_path / "file" / folder / "lib.so", lambda: None)


def test_errors_name_the_cache_only_if_they_are_of_it(tmp_path: Path) -> None:
    library = tmp_path / "cache" / "lib.so"

    def build(*files: str) -> None:
        raise OSError(28, "No space left on device", files[0], None, *files[1:])

    with pytest.raises(CompileError, match=r"cache; set TFDDL_CACHE_DIR .* No space left"):
        cached_or_built(library, lambda: build("/tmp/lib.so", str(library)))  # as of shutil.copyfile
    with pytest.raises(OSError, match=r"/tmp/build\.log"):
        cached_or_built(library, lambda: build("/tmp/build.log"))


def test_files_of_another_user_name_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that cannot be read, and a lock that cannot be written."""
    library, plain = tmp_path / "lib.so", Path.open

    def refuse(path: Path, *arguments: str, **options: object) -> object:
        if path.parent == tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert not is_whole(library)
    forget_failure(library)
    with pytest.raises(CompileError, match=rf"to {tmp_path}; set TFDDL_CACHE_DIR .* Received: .*lib\.lock"):
        cached_or_built(library, lambda: None)


@pytest.mark.parametrize("compiles", [False, True])
def test_a_full_disk(compiles: bool, tmp_path: Path) -> None:
    """Files may not grow, so that nothing can be written: the library, its lock, and the reason of the failure."""
    library, (soft, hard) = tmp_path / "lib.so", resource.getrlimit(resource.RLIMIT_FSIZE)

    def build() -> None:
        if not compiles:
            raise CompilationFailed("the compiler is on strike")
        library.write_text(HEADER)

    reason = rf"to {tmp_path}; set TFDDL_CACHE_DIR .* MB free\. Received: .*too large"
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(CompileError, match=reason if compiles else "on strike"):
            cached_or_built(library, build, once=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_cache_directory_follows_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDDL_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_directory() == tmp_path / "mine"
    monkeypatch.delenv("TFDDL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "tfddl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "tfddl"


@pytest.mark.parametrize("others", [False, True])
def test_cache_clear_removes_ours_and_nothing_else(
    others: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "cache"
    monkeypatch.setenv("TFDDL_CACHE_DIR", str(directory))
    cleared = CliRunner().invoke(main, ["cache", "clear"])
    assert cleared.output == f"{directory} holds nothing of tfddl's\n"
    stem = library_stem("2.21.0", "openmpi-5")
    cached_or_built(directory / f"lib{stem}.so", lambda: (directory / f"lib{stem}.so").write_text(HEADER))
    xla = f"lib{xla_library_stem('2.22.0-dev20261101')}.so"
    note = "headers-0123456789abcdef"
    ours = [f".lib{stem}.so.123", f"lib{stem}.failed", f"{stem}.log", xla, note, f".{note}.123"]
    for name in [*ours, *(OTHERS if others else [])]:
        (directory / name).write_text("")
    cleared = CliRunner().invoke(main, ["cache", "clear"])
    assert cleared.exit_code == 0
    assert len(cleared.output.splitlines()) == len(ours) + 2
    if others:
        assert {path.name for path in directory.iterdir()} == set(OTHERS)
    else:
        assert not directory.exists()
