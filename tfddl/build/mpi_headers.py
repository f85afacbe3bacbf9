"""Finds the headers of an MPI library. Wheels, distributions and clusters have them in different directories."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tfddl.build.discover import DiscoveryError, Mpi

_HEADER_VERSION = {
    "openmpi": re.compile(r"#define\s+OMPI_MAJOR_VERSION\s+(\d+)"),
    "mpich": re.compile(r"#define\s+MPICH_VERSION\s+\"(\d+)"),
}
_HEADER_PACKAGE = {"openmpi": "libopenmpi-dev", "mpich": "libmpich-dev"}


def mpi_include(mpi: Mpi) -> str:
    """Finds the directory of the mpi.h that belongs to an MPI.

    Args:
        mpi: an `Mpi`.

    Returns:
        String, the first likely directory whose mpi.h has the same vendor and major version.

    Raises:
        DiscoveryError: there is no matching mpi.h.
    """
    library = Path(mpi.library)
    prefix = library.parent.parent
    likely = [prefix / "include", library.parent / "openmpi" / "include"]
    for mpicc in (prefix / "bin" / "mpicc", Path("mpicc")):
        likely += _mpicc_includes(str(mpicc))
    for directory in likely:
        if _header_major(mpi.vendor, directory) == mpi.major:
            return str(directory)
    raise DiscoveryError(
        f"tfddl found {mpi.name} ({mpi.library}) but not its header mpi.h, which compiling needs: install it "
        f"(Debian and Ubuntu: {_HEADER_PACKAGE[mpi.vendor]}) or put its mpicc on PATH."
    )


def _header_major(vendor: str, directory: Path) -> int | None:
    """Reads the major version from mpi.h, or from a header such as mpi-x86_64.h that mpi.h includes."""
    for header in sorted(directory.glob("mpi*.h")):
        match = _HEADER_VERSION[vendor].search(header.read_text(errors="replace"))
        if match:
            return int(match[1])
    return None


def _mpicc_includes(mpicc: str) -> list[Path]:
    """Asks a compiler wrapper for its include directories. Open MPI and MPICH both understand -show."""
    try:
        shown = subprocess.run([mpicc, "-show"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    # The wrappers do not quote a space in a path.
    found = re.findall(r"(?:^|\s)-I\s*(.+?)(?=\s+-|\s*$)", shown.stdout, re.MULTILINE)
    return [Path(path.strip("'\"")) for path in found]
