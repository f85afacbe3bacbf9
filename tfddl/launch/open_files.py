"""The limit of open files, `ulimit -n`: tfddlrun has a connection to each rank, and the files of --output-filename."""

from __future__ import annotations

import contextlib
import resource

# Those of a job without ranks: pipes, mpirun, connections of strangers.
_OTHERS = 64


def make_room(processes: int, with_files: bool) -> None:
    """Raises the limit as far as this user may.

    Args:
        processes: The number of ranks.
        with_files: Whether each rank has files of its own.

    Raises:
        ValueError: That is not enough.
    """
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        limit = most
    if limit != resource.RLIM_INFINITY and limit < _needed(processes, with_files):
        raise ValueError(lack(processes, with_files))


def lack(processes: int, with_files: bool) -> str:
    """The error of a limit that is too low."""
    needed, limit = _needed(processes, with_files), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"The job needs {needed} open files for -np {processes}: raise the hard limit, nofile in "
        f"/etc/security/limits.conf, or start fewer processes. Received: ulimit -Hn {limit}"
    )


def _needed(processes: int, with_files: bool) -> int:
    return processes * (3 if with_files else 1) + _OTHERS
