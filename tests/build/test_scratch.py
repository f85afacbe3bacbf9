"""Directories of killed builds."""

import errno
import fcntl
import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from tfddl.build.scratch import scratch_directory

SPAWN = multiprocessing.get_context("spawn")


def _build(made: object) -> None:
    with scratch_directory() as directory:
        (directory / "object").write_text("half of it")
        made.put(directory)  # type: ignore[attr-defined]
        time.sleep(600)


def test_the_next_build_removes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories of running builds, and of other programs, stay."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "tfddl-build-log").mkdir()
    made = SPAWN.Queue()
    builds = []
    for _ in range(2):
        builds.append(SPAWN.Process(target=_build, args=(made,)))
        builds[-1].start()
    directories = [made.get(timeout=60) for _ in builds]
    try:
        with scratch_directory() as mine:
            assert {mine, *directories, tmp_path / "tfddl-build-log"} == set(tmp_path.iterdir())
        os.kill(builds[0].pid or 0, signal.SIGKILL)
        builds[0].join(60)
        with scratch_directory():
            assert sum(directory.exists() for directory in directories) == 1
    finally:
        os.kill(builds[1].pid or 0, signal.SIGKILL)
        builds[1].join(60)
    with scratch_directory() as mine:
        assert {mine, tmp_path / "tfddl-build-log"} == set(tmp_path.iterdir())
    assert not mine.exists()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "planted")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", refuse)
    with scratch_directory() as first, scratch_directory() as second:
        assert {first, second} == set(tmp_path.iterdir())
