"""A /dev/shm and a TMPDIR for one job alone, where mount namespaces are allowed; else a TMPDIR alone."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MOUNTS = """
mount -t tmpfs -o mode=1777 tmpfs /dev/shm && mount -t tmpfs -o mode=1777 tmpfs "$1/tmp" &&
mount -t tmpfs -o size=64k tmpfs "$1/full" && head -c 65536 /dev/zero >"$1/full/filled"; echo ready; exec sleep 100000
"""


@dataclass(frozen=True)
class PrivateTmp:
    """Where one job puts its files.

    Attributes:
        directory: The directory of the job. `tmp` in it is the job's TMPDIR; `full` is a file system without room.
        holder: The process that holds the namespace; 0 without one.
    """

    directory: Path
    holder: int

    def command(self, command: list[str]) -> list[str]:
        """The command line that runs a command with these folders."""
        if not self.holder:
            return command
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self.holder), *user, "--mount", f"--wd={Path.cwd()}", *command]

    def files(self) -> list[str]:
        """The files in the job's TMPDIR and /dev/shm, without AutoGraph's source and byte code."""
        root = Path(f"/proc/{self.holder}/root") if self.holder else Path("/")
        places = [self.directory / "tmp", *([Path("/dev/shm")] if self.holder else [])]
        return [
            f"/{path.relative_to(root)}"
            for place in places
            for path in sorted((root / place.relative_to("/")).rglob("*"))
            if path.name != "__pycache__" and not path.name.startswith("__autograph_generated_file")
        ]


@functools.cache
def _namespace() -> list[str]:
    """The command line that makes a namespace; empty where none is allowed."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--mount"]
    probe = [*command, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    with contextlib.suppress(OSError):
        if subprocess.run(probe, capture_output=True, timeout=30).returncode == 0:
            return command
    return []


@contextlib.contextmanager
def private_tmp(directory: Path) -> Iterator[PrivateTmp]:
    """Makes the folders in the directory of a job."""
    (directory / "tmp").mkdir()
    (directory / "full").mkdir()
    if not _namespace():
        yield PrivateTmp(directory, 0)
        return
    command = [*_namespace(), "sh", "-c", _MOUNTS, "sh", str(directory)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield PrivateTmp(directory, holder.pid)
    finally:
        holder.kill()
        holder.communicate()
