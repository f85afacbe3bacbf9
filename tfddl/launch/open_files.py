"""The limit of open files, `ulimit -n`: tfddlrun has a connection to each rank, and the files of --output-filename."""

from __future__ import annotations

import contextlib
import errno
import resource

# Open files of tfddlrun besides those of the ranks: pipes, mpirun, connections of strangers.
_OTHERS = 64
# mpirun and the ranks inherit the limit, and some programs close each number up to it.
_ENOUGH = 1 << 16


def make_room(processes: int, with_files: bool) -> None:
    """Raises the limit if it is low.

    Args:
        processes: The number of ranks.
        with_files: Whether each rank has files of its own.

    Raises:
        ValueError: This user may not raise it far enough.
    """
    needed, (limit, most) = _needed(processes, with_files), resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    wanted = max(limit, needed, _ENOUGH)
    if most != resource.RLIM_INFINITY:
        wanted = min(most, wanted)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        limit = wanted
    if limit < needed:
        raise ValueError(lack(processes, with_files))


def lack(processes: int, with_files: bool) -> str:
    """The error of a limit that is too low."""
    needed, limit = _needed(processes, with_files), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"The job needs {needed} open files for -np {processes}: raise the hard limit, nofile in "
        f"/etc/security/limits.conf, or start fewer processes. Received: ulimit -Hn {limit}"
    )


def no_room(error: OSError, processes: int, with_files: bool) -> str:
    """The error of a connection that tfddlrun cannot take, from the arguments of `make_room`."""
    if error.errno != errno.ENFILE:
        return f"{lack(processes, with_files)}: {error.strerror}"
    return (
        "This host has as many open files as its kernel allows for all programs together: end programs that open many "
        f"files, or raise the limit, by sysctl -w fs.file-max=NUMBER: {error.strerror}"
    )


def _needed(processes: int, with_files: bool) -> int:
    return processes * (3 if with_files else 1) + _OTHERS
