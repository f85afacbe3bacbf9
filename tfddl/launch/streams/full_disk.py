"""Commands whose output goes to a full disk end with one line. A job goes on: `Output` loses its lines."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Any

import click

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Command(click.Command):
    """A command that says in one line that its output cannot be written."""

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
