"""Settings of Open MPI, and directories for what it writes during a job. tfddlrun removes them, even if mpirun is killed.

Open MPI writes 16 MB a rank to /dev/shm and its session to TMPDIR, and only mpirun itself would remove them.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tfddl.runtime.library import TCP_PARAMETERS

# The parameter's names in Open MPI 5 and 4. An unknown parameter does nothing.
_SESSION = ("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base")
SEGMENTS = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory")
_INTERFACES = "OMPI_MCA_btl_tcp_if_include"
_SHARED_MEMORY = Path("/dev/shm")

Scratch: TypeAlias = contextlib.AbstractContextManager[tuple[dict[str, str], list[str]]]


@contextlib.contextmanager
def scratch(environment: Mapping[str, str], mpirun: str) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Makes the directories, and settings of Open MPI for a job whose ranks are all on this host.

    Settings of the user stay as they are.

    Args:
        environment: the environment variables.
        mpirun: path of mpirun, beside which Open MPI's file of parameters lies.

    Yields:
        Environment variables for mpirun, and the directories, which are removed at the end.
    """
    given = _given(environment, mpirun)
    settings: dict[str, str] = {}
    made = []
    for names, parent in ((_SESSION, None), (SEGMENTS, _SHARED_MEMORY)):
        if given.isdisjoint(names):
            # Without a directory, or room in it, Open MPI does as well as it can.
            with contextlib.suppress(OSError):
                made.append(tempfile.mkdtemp(prefix="tfddlrun-", dir=parent))
                settings |= dict.fromkeys(names, made[-1])
    # Ranks that cannot share memory talk over TCP, which need not leave this host.
    if given.isdisjoint((_INTERFACES, "OMPI_MCA_btl_tcp_if_exclude")):
        settings[_INTERFACES] = "lo"
    try:
        yield settings, made
    finally:
        for directory in made:
            shutil.rmtree(directory, ignore_errors=True)


def tcp_settings(environment: Mapping[str, str], mpirun: str) -> dict[str, str]:
    """Environment variables for mpirun: `library.TCP_PARAMETERS` that the user has not set. mpirun gives them to all ranks.

    Args:
        environment: the environment variables.
        mpirun: see `scratch`.
    """
    given = _given(environment, mpirun)
    return {name: value for name, value in TCP_PARAMETERS.items() if name not in given}


def _given(environment: Mapping[str, str], mpirun: str) -> set[str]:
    """The parameters of Open MPI that are set by variables or by its files, as names of variables."""
    given = set(environment)
    files = (
        Path(environment.get("HOME", "/nonexistent"), ".openmpi/mca-params.conf"),
        Path(mpirun).parent.parent / "etc/openmpi-mca-params.conf",
    )
    for file in files:
        with contextlib.suppress(OSError):
            given |= {f"OMPI_MCA_{name}" for name in _names(file.read_text(errors="replace").splitlines())}
    return given


def _names(lines: Sequence[str]) -> list[str]:
    return [match[1] for line in lines if (match := re.match(r"\s*(\w+)\s*=", line))]
