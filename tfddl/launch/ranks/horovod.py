"""Runs the command of one rank of `tfddlrun --horovod`: in its environment `import horovod` gives tfddl.

Like `../rank_shim.py` this file runs as a script, by `python -I -S`, and imports no installed package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

# Horovod's variable -> those of Open MPI and MPICH.
_VARIABLES = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    "LOCAL_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
}
_ROOT = Path(__file__).resolve().parents[3]
_PACKAGE = _ROOT / "tfddl" / "compat" / "path"


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of the rank.

    Args:
        given: The environment that mpirun gives the rank.

    Returns:
        It, with the package `horovod` on Python's path, and with `HOROVOD_RANK` and the other variables by which libraries
        notice that Horovod runs them. `HOROVOD_CROSS_RANK` and `HOROVOD_CROSS_SIZE` take equally many ranks on all hosts for
        granted.
    """
    values = {
        name: int(next(given[other] for other in others if other in given))
        for name, others in _VARIABLES.items()
    }
    values["CROSS_RANK"] = values["RANK"] // values["LOCAL_SIZE"]
    values["CROSS_SIZE"] = -(-values["SIZE"] // values["LOCAL_SIZE"])
    path = os.pathsep.join(filter(None, (str(_PACKAGE), given.get("PYTHONPATH"))))
    ranks = {f"HOROVOD_{name}": str(value) for name, value in values.items()}
    return {**given, **ranks, "HOROVOD_HOSTNAME": os.uname().nodename, "PYTHONPATH": path}


def main() -> None:
    """Replaces this process by the command."""
    command = sys.argv[1:]
    try:
        os.execvpe(command[0], command, environment(os.environ))
    except OSError as error:
        sys.path.insert(0, str(_ROOT))  # this process is a script
        from tfddl.launch.rank_shim import not_started

        status, text = not_started(command, error)
        sys.stderr.write(text)
        sys.exit(status)


if __name__ == "__main__":
    main()
