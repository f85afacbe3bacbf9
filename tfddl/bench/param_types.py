"""Types of command line options: sizes in bytes, lists of names, labs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from tfddl.bench.lab import ADDRESSES, network_text
from tfddl.bench.relay import bytes_per_second, seconds
from tfddl.launch.hosts import Host

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


@dataclass(frozen=True)
class Lab:
    """Hosts on this machine, for `tfddl.bench.lab`.

    Attributes:
        hosts: The hosts and the ranks of each.
        rate: What a link carries in each direction, as `tc` writes it.
        delay: One way, or "" for none.
    """

    hosts: tuple[Host, ...]
    rate: str
    delay: str

    @property
    def network(self) -> str:
        """As in the variable `tfddl.bench.lab.LAB`."""
        return network_text(self.rate, self.delay, len(self.hosts))

    @property
    def text(self) -> str:
        """As on the command line."""
        words = [f"{len(self.hosts)}x{self.hosts[0].slots}", self.rate, self.delay]
        return ",".join(words if self.delay else words[:2])

    @property
    def ranks(self) -> int:
        """The ranks of all hosts."""
        return sum(host.slots for host in self.hosts)


class Labs(click.ParamType):
    """A lab: `4x2`, `4x2,100mbit` or `4x2,100mbit,20ms`."""

    name = "lab"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """A `Lab`."""
        if not isinstance(value, str):
            return value
        size, rate, delay, *more = [*value.split(","), "", ""]
        found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", size)
        if not found or any(more) or not 2 <= int(found[1]) <= len(ADDRESSES):
            self.fail(
                f"A lab has 2 to {len(ADDRESSES)} hosts: write HOSTSxRANKS,RATE,DELAY as in 4x2,100mbit,20ms, without the "
                f"parts that have no limit. A host's RANKS are at least 1. Received: {value!r}",
                parameter,
                context,
            )
        try:
            bytes_per_second(rate or "-")
            seconds(delay or "0s")
        except ValueError as error:
            self.fail(str(error), parameter, context)
        names = list(ADDRESSES)[: int(found[1])]
        return Lab(tuple(Host(name, int(found[2])) for name in names), rate or "-", delay)
