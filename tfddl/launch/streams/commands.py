"""Commands that end with one line: by a signal, and where their output goes to a full disk.

A job goes on with a full disk: `Output` loses its lines.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Any

import click

from tfddl.launch import signals
from tfddl.launch.outcome import interrupted

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Command(click.Command):
    """A command whose last line says that its output cannot be written, or by which signal it ends.

    Attributes:
        program: The command's name in messages.
    """

    program = "tfddlrun"

    def main(self, *args: Any, **options: Any) -> Any:
        try:
            return super().main(*args, **options)
        except OSError as error:
            if error.errno not in _FULL or error.filename is not None:  # a file has a name, stdout has none
                raise
            with contextlib.suppress(OSError):  # stderr may be on the same disk
                click.ClickException(
                    f"Cannot write the output: make room, or send it elsewhere. Received: {error.strerror}"
                ).show()
            # The rest of the buffer goes to the null device, or Python would fail on it again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as caught:
            verdict = interrupted(signals.number_of(caught), self.program)
            click.echo(verdict.words, err=True)
            ctx.exit(verdict.code)


def program_of(context: click.Context) -> str:
    """The name of a `Command` in messages."""
    assert isinstance(context.command, Command)
    return context.command.program
