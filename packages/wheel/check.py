"""The promises of a wheel: its size, its platform, and no libraries from outside but TensorFlow's and MPI's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click

from packages.wheel.inputs import MPIS, TENSORFLOW_LIBRARIES
from packages.wheel.toolchain import Toolchain

MOST_BYTES = 20_000_000


def check_wheel(wheel: Path, toolchain: Toolchain) -> None:
    """Checks a wheel.

    Raises:
        click.ClickException: the wheel is too large, needs another library, or needs newer symbols than its name says.
    """
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        raise click.ClickException(f"{wheel} has more than {MOST_BYTES} bytes. Received: {size}")
    if toolchain.root is None:
        return
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
    shown = subprocess.run(command, capture_output=True, text=True)
    if shown.returncode:
        raise click.ClickException(f"auditwheel cannot read {wheel}: {shown.stderr or shown.stdout}")
    found = json.loads(shown.stdout)
    expected = {*TENSORFLOW_LIBRARIES, *(abi.library for abi in MPIS)}
    if found["sym_tag"] != toolchain.platform or set(found["external_libs"]) != expected:
        raise click.ClickException(
            f"{wheel} should need symbols of {toolchain.platform} and the libraries {sorted(expected)}. "
            f"Received: {found['sym_tag']}, {sorted(found['external_libs'])}"
        )
