"""Launcher check: refuses a job of size 1 where a launcher has started several processes that MPI did not join.

`srun -n 2 python train.py` without an MPI plugin starts two processes, and MPI takes each for a job of its own: two models
would train side by side and overwrite each other's checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ALLOW_VARIABLE = "TFDDL_ALLOW_SINGLE"

# Size and rank that launchers of MPI programs give to a process. Their last one decides: it starts inside the step of a
# scheduler, whose variables it leaves in the environment.
_MPI_LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("PMIX_SIZE", "PMIX_RANK"),
    ("PALS_SIZE", "PALS_RANKID"),
    ("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
)
# The number of processes on this host: 1 of them does not mean that the job has size 1.
_LOCAL = ("MPI_LOCALNRANKS", "MPI_LOCALRANKID")
# Only a step has SLURM_STEP_NUM_TASKS. SLURM_NTASKS is also set in a batch script and by salloc, where a program runs once.
_SLURM = ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
_GENERIC = ("WORLD_SIZE", "RANK")
_SPECIAL_STEPS = (
    0xFFFFFFF0  # from here on: interactive (...FA), batch (...FB; before Slurm 20.11 ...FE), extern (...FC)
)
_PROC = Path("/proc")


def check(comm: Any, world_size: int) -> None:
    """Raises if MPI knows this process only, and a launcher has started several.

    Args:
        comm: The argument of `init()`. A caller that gives one has chosen the processes of the job.
        world_size: The size of `MPI.COMM_WORLD`.

    Raises:
        RuntimeError: The processes belong together. The message quotes the launcher's variables and says how to start them.
    """
    text = unexpected_single(os.environ) if comm is None and world_size == 1 else None
    if text:
        raise RuntimeError(text)


def unexpected_single(environment: Mapping[str, str]) -> str | None:
    """The error for a job of size 1 with these environment variables; None if nothing says that there are more processes.

    Args:
        environment: The environment variables of this process.
    """
    if environment.get(ALLOW_VARIABLE) == "1":
        return None
    if any(size == 1 for size, _ in _found(environment, _MPI_LAUNCHERS)):
        return None
    slurm = () if _runs_once(environment) else (_SLURM,)
    pairs = (*_MPI_LAUNCHERS, _LOCAL, *slurm, _GENERIC)
    several = [(size, names) for size, names in _found(environment, pairs) if size > 1]
    if not several:
        return None
    size, (_, rank) = several[0]
    quoted = ", ".join(f"{name}={environment[name]}" for _, names in several for name in names)
    command = f"tfddlrun -np {size} python train.py"
    if any(names == _SLURM for _, names in several):
        cure = (
            f"srun --mpi=pmix -n {size} python train.py (--mpi=pmi2 with MPICH; `srun --mpi=list` lists the plugins), "
            f"or, in the batch script and without srun: {command}"
        )
    else:
        cure = f"{command} (or the mpirun of the MPI that this Python uses)"
    return (
        f"A launcher started {size} processes, this is number {environment[rank]}, but MPI knows only this one: each would "
        f"train a model of its own. Start them with {cure}. "
        f"For independent programs set {ALLOW_VARIABLE}=1. Received: {quoted}"
    )


def is_launched(environment: Mapping[str, str]) -> bool:
    """Whether an MPI launcher has started this process, with others or alone."""
    return any(_found(environment, (*_MPI_LAUNCHERS, _LOCAL)))


def _found(
    environment: Mapping[str, str], pairs: tuple[tuple[str, str], ...]
) -> Iterator[tuple[int, tuple[str, str]]]:
    """The sizes of the pairs whose two variables are both numbers."""
    for names in pairs:
        values = [environment.get(name, "") for name in names]
        if all(value.isdecimal() for value in values):
            yield int(values[0]), names


def _runs_once(environment: Mapping[str, str]) -> bool:
    """Whether Slurm started a batch script or a shell, in which this program runs once whatever the number of tasks.

    The variables do not always tell: a job that `sbatch` submits from within a step inherits the variables of that step,
    and `srun --pty -n 2 bash` sets those of any step. Slurm's task itself tells: its parent is named after its step, and
    the shell has a terminal.
    """
    step = environment.get("SLURM_STEP_ID", "")
    if step.isdecimal() and int(step) >= _SPECIAL_STEPS:
        return True
    task = environment.get("SLURM_TASK_PID", "")
    try:
        state = (_PROC / task / "stat").read_text().rpartition(")")[2].split()
        parent, terminal = state[1], state[4]
        title = (_PROC / parent / "cmdline").read_bytes()
    except (OSError, IndexError):  # the task has ended, or lives in another container
        return False
    if not title.startswith(b"slurmstepd"):
        return False
    return b".batch]" in title or (terminal != "0" and task != str(os.getpid()))
