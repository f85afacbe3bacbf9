"""Runs a command that the kernel kills as soon as the process that started it is gone.

    python -S die_with_parent.py COMMAND ARGS...

Used twice in a row, `die_with_parent mpirun ... die_with_parent python script.py`, so that a killed pytest takes mpirun
with it, and mpirun the ranks, even where a rank hangs in C code with the GIL held. The setting survives exec; the
process id and its standard streams stay those that the caller knows.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ties this process to its parent: the kernel kills it when the parent is gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # The parent ended before the call above: no signal will come.
        os._exit(1)


def main() -> None:
    """Ties this process to its parent, then becomes the command."""
    die_with(os.getppid())
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
