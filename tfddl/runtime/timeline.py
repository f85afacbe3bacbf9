"""Records the timeline: a trace of this rank's collectives, for Perfetto and `tfddl timeline`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tfddl.runtime import fork, library
from tfddl.runtime.job import Job, current

VARIABLE = "TFDDL_TIMELINE"
MARKS_VARIABLE = "TFDDL_TIMELINE_MARK_CYCLES"


def rank_path(path: str | os.PathLike[str], rank: int) -> Path:
    """The file of a rank: `path` for rank 0, and `path` with the rank before its suffix for other ranks.

    A device, such as `/dev/null`, is the file of all ranks.
    """
    whole = Path(path)
    if rank == 0 or whole.is_char_device():
        return whole
    return whole.with_name(f"{whole.stem}.rank{rank}{whole.suffix}")


def start_timeline(file_path: str | bytes | os.PathLike[Any], mark_cycles: bool = False) -> None:
    """Records this rank's collectives from now on. Not all ranks have to call it, nor at the same time.

    The file is in Chrome's trace event format. It grows every tenth of a second, so it also shows the last collectives of
    a process that is killed. `tfddl timeline` sums up the files of all ranks and merges them.

    Args:
        file_path: The file of rank 0. With `timeline.json`, rank 3 writes `timeline.rank3.json`. Existing files are
            overwritten. A device, such as `/dev/null`, is the file of all ranks.
        mark_cycles: Whether to mark each vote in which the ranks agree on what runs.

    Raises:
        ValueError: tfddl is not initialized, `file_path` is empty, or a timeline is being written already.
        TypeError: `file_path` is no path.
        OSError: The file cannot be written.
        RuntimeError: This process was forked from a rank.
    """
    fork.check("start_timeline")
    job = current("start_timeline")
    path = rank_path(os.path.abspath(_text(file_path)), job.rank)
    if job.timeline is not None:
        raise ValueError(
            f"A timeline is being written already, to '{job.timeline}': call hvd.stop_timeline() first. Received: '{path}'"
        )
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    native = library.native()
    if native.tfddl_timeline_start(file, int(mark_cycles)) != 0:
        os.close(file)
        raise ValueError(f"start_timeline: {native.tfddl_last_error().decode()}. Received: '{path}'")
    job.timeline = path


def _text(file_path: Any) -> str:
    """The path as a text.

    Raises:
        TypeError: `file_path` is no path.
        ValueError: It is empty.
    """
    advice = "pass a path, such as 'timeline.json'"
    if not isinstance(file_path, (str, bytes, os.PathLike)):
        raise TypeError(
            f"file_path of start_timeline must be a str or a path: {advice}. Received: {file_path!r}"
        )
    if not os.fspath(file_path):
        raise ValueError(f"file_path of start_timeline must not be empty: {advice}. Received: {file_path!r}")
    return os.fsdecode(file_path)


def stop_timeline() -> None:
    """Ends the timeline of this rank, as `shutdown()` and the end of the program do. Without a timeline it does nothing.

    Raises:
        ValueError: tfddl is not initialized.
        OSError: The file is not complete, for example because the disk is full.
        RuntimeError: This process was forked from a rank.
    """
    fork.check("stop_timeline")
    problem = _stop(current("stop_timeline"))
    if problem:
        raise OSError(problem)


def start_from_environment() -> None:
    """Starts a timeline if `TFDDL_TIMELINE` names a file.

    Raises:
        ValueError: The file cannot be written.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        start_timeline(path, os.environ.get(MARKS_VARIABLE, "0") not in ("", "0"))
    except OSError as error:
        raise ValueError(
            f"{VARIABLE} (tfddlrun --timeline-filename) must be a file that can be written: make its folder, or set "
            f"another. Received: {path!r}: {error}"
        ) from None


def end(job: Job) -> None:
    """Ends the timeline at the end of the job, and prints an error instead of raising it."""
    problem = _stop(job)
    if problem:
        print(f"tfddl: {problem}", file=sys.stderr)


def _stop(job: Job) -> str:
    path, job.timeline = job.timeline, None
    native = library.native()
    if path is None or native.tfddl_timeline_stop() == 0:
        return ""
    return f"the timeline '{path}' is not whole: {native.tfddl_last_error().decode()}"
