"""What commands that report numbers have in common: the files that they write, the packages that they need."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import click

_PICTURES = (".png", ".svg")


def file_option(*names: str, about: str) -> Any:
    """An option for a file to write, of which is said beforehand if that cannot be done.

    Args:
        names: The option's, as click takes them. One with "plot" in its parameter's name is a picture.
        about: Its help.
    """
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option(*names, callback=_check, type=path, metavar="FILE", help=about)


def check_packages(command: str, plot: Path | None) -> None:
    """Checks that what the tables, and the picture if there is to be one, are made with is installed.

    Raises:
        click.ClickException: It is not.
    """
    for package in ["rich", *(["matplotlib"] if plot is not None else [])]:
        if importlib.util.find_spec(package) is None:
            raise click.ClickException(
                f"{command} needs {package}: pip install 'tfddl[bench]', or pip install {package}"
            )


def _check(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    if path is None:
        return None
    place = path if path.exists() else path.absolute().parent
    if not os.access(place, os.W_OK):
        raise click.BadParameter(f"{path} cannot be written: no such folder, or it is not yours.")
    if "plot" in (parameter.name or "") and path.suffix not in _PICTURES:
        raise click.BadParameter(f"A picture is {' or '.join(_PICTURES)}. Received: {path}")
    return path
