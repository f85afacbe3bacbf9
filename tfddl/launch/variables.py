"""Environment variables that options of tfddlrun give to the ranks."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

import click

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The names that `-x` takes."""


def timeline(path: str | None, mark_cycles: bool) -> dict[str, str]:
    """The variables that make the ranks record a timeline (`tfddl.runtime.timeline`)."""
    if path is None:
        if mark_cycles:
            raise click.UsageError("--timeline-mark-cycles needs a file: add --timeline-filename FILE.")
        return {}
    # A script may change its directory before hvd.init().
    return {"TFDDL_TIMELINE": os.path.abspath(path)} | (
        {"TFDDL_TIMELINE_MARK_CYCLES": "1"} if mark_cycles else {}
    )


def spellings(horovod: bool, refused: bool) -> dict[str, str]:
    """The variables that turn the spellings of Keras 2 off (`tfddl.compat.horovod.keras2_spellings`)."""
    if refused and not horovod:
        raise click.UsageError(
            "--no-keras2-spellings is for programs that import horovod: give --horovod as well."
        )
    return {"TFDDL_KERAS2_SPELLINGS": "0"} if refused else {}


def interfaces(names: str | None) -> dict[str, str]:
    """The variable that has NCCL use the network interfaces of the ranks, unless it is set here."""
    variable = "NCCL_SOCKET_IFNAME"
    exact = f"={names}"  # eth1 would mean eth10, too
    return {variable: exact} if names and variable not in os.environ else {}


def given(items: Sequence[str]) -> dict[str, str]:
    """The variables of `-x NAME=VALUE`, and of `-x NAME`, whose value is that of this process."""
    found = {}
    for item in items:
        name, equals, value = item.partition("=")
        is_name = NAME.fullmatch(name)
        if not is_name or not (equals or name in os.environ):
            raise click.UsageError(
                "-x takes NAME=VALUE, or the NAME of a variable that is set here: write -x NAME=VALUE. "
                f"Received: -x {shlex.quote(item)}{', which is not set' if is_name else ''}"
            )
        found[name] = value if equals else os.environ[name]
    return found
