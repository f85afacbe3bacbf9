"""A debugger that reads from the terminal cannot work in a process whose launcher gives it no terminal."""

from __future__ import annotations

import bdb
import functools
import os
import sys

from tfddl.runtime import exit_code


@functools.cache
def install() -> None:
    """Adds an explanation to the traceback of a debugger that finds its input at its end."""
    exit_code.after_traceback(_explain)


def _explain(error: BaseException) -> None:
    if isinstance(error, bdb.BdbQuit) and _without_input():
        print(
            "tfddl: pdb found no input: ranks cannot read from the terminal, their stdin is /dev/null. Call "
            "breakpoint() on one rank only, and talk to pdb over a socket (pip install remote-pdb): "
            "tfddlrun -np 2 -x PYTHONBREAKPOINT=remote_pdb.set_trace python train.py, then nc 127.0.0.1 PORT. Or call "
            "breakpoint() on rank 0 only and start the job with mpirun instead of tfddlrun, or attach a debugger: "
            "debugpy.listen(5678 + hvd.rank()); debugpy.wait_for_client()",
            file=sys.stderr,
        )


def _without_input() -> bool:
    try:
        return os.path.samestat(os.fstat(0), os.stat(os.devnull))
    except OSError:  # no descriptor 0
        return True
