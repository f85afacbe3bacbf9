"""Options and checks of commands that report numbers: output files and required packages."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import click

_PICTURES = (".png", ".svg")


def file_option(*names: str, about: str) -> Any:
    """Makes an option for an output file. The command refuses a file that cannot be written before it starts.

    Args:
        names: The names of the option. An option with "plot" in its name is for a picture.
        about: The help text.
    """
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option(*names, callback=_check, type=path, metavar="FILE", help=about)


def check_packages(command: str, plot: Path | None) -> None:
    """Checks that rich, for tables, and matplotlib, for a picture, are installed.

    Raises:
        click.ClickException: A package is missing.
    """
    for package in ["rich", *(["matplotlib"] if plot is not None else [])]:
        if importlib.util.find_spec(package) is None:
            raise click.ClickException(f"{command} needs {package}: pip install {package}")


def _check(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    if path is None:
        return None
    if path == Path():  # click refuses a folder, and takes an empty text
        raise click.BadParameter("The name is empty: give one, or leave the option out. Received: ''")
    target = path if path.exists() else path.absolute().parent
    if not os.access(target, os.W_OK):
        raise click.BadParameter(
            f"{path} cannot be written: make its directory, or choose one that you may write to."
        )
    if "plot" in (parameter.name or "") and path.suffix not in _PICTURES:
        raise click.BadParameter(
            f"A picture is {' or '.join(_PICTURES)}: choose a name that ends so. Received: {path}"
        )
    return path
