"""Files that commands write."""

from __future__ import annotations

import os
from pathlib import Path

import click

_PICTURES = (".png", ".svg")


def place(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """A click callback that says beforehand that a file cannot be written, and which pictures there are."""
    if path is None:
        return None
    where = path if path.exists() else path.absolute().parent
    if not os.access(where, os.W_OK):
        raise click.BadParameter(f"{path} cannot be written: no such folder, or it is not yours.")
    if "plot" in (parameter.name or "") and path.suffix not in _PICTURES:
        raise click.BadParameter(f"A picture is {' or '.join(_PICTURES)}. Received: {path}")
    return path
