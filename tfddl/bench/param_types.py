"""Types of command line options: sizes in bytes, lists of names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Sizes(click.ParamType):
    """Sizes of tensors: `4B,64K,1M`; K, M and G are powers of 1024."""

    name = "sizes"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """A list of bytes."""
        if not isinstance(value, str):
            return value
        found = [re.fullmatch(r"(\d+) ?([KMG]?)(?:i?B)?", text.strip(), re.I) for text in value.split(",")]
        sizes = [match and int(match[1]) * _UNITS[match[2].upper()] for match in found]
        if not all(sizes):
            self.fail(
                f"Sizes are numbers of bytes: write them as in 4B,64K,1M. Received: {value!r}",
                parameter,
                context,
            )
        return sizes


class Names(click.ParamType):
    """A list of the given names, or `all` or `none`."""

    name = "names"

    def __init__(self, choices: Sequence[str]):
        self._choices = tuple(choices)

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """A list of names."""
        if not isinstance(value, str):
            return value
        if value in ("all", "none"):
            return list(self._choices) if value == "all" else []
        names = [name.strip() for name in value.split(",")]
        unknown = [name for name in names if name not in self._choices]
        if unknown:
            self.fail(
                f"Choose from {', '.join(self._choices)}, or all, or none. Received: {', '.join(unknown)}",
                parameter,
                context,
            )
        return names
