"""Types of the values of tfddlrun's options."""

from __future__ import annotations

import math
from typing import Any

import click


class Count(click.IntRange):
    """A number of processes. In -np2 click takes "p2" for the value of -n."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        digits: Any = value.removeprefix("p") if isinstance(value, str) else value
        try:
            number = int(digits)
        except ValueError:
            self.fail(f"give a number of processes, from 1 on. Received: {value}", param, ctx)
        return super().convert(number, param, ctx)


class Seconds(click.FloatRange):
    """A time, which may be infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if math.isnan(seconds):
            self.fail(f"give a number of seconds, or inf. Received: {value}", param, ctx)
        return super().convert(seconds, param, ctx)


class _NotEmpty(click.ParamType):
    """An empty text is mostly a shell variable that is not set. As a path it would be the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            kind = param.param_type_name if param else "option"
            self.fail(f"the value is empty: give one, or leave the {kind} out. Received: ''", param, ctx)
        return super().convert(value, param, ctx)


class Text(_NotEmpty, click.types.StringParamType):
    """A text that is not empty."""


class Folder(_NotEmpty, click.Path):
    """A path that is not empty."""
