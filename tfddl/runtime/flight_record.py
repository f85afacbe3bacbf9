"""The flight record: what this rank did last, in a file that `tfddl analyze` reads."""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import os
import secrets
import signal
import sys
import threading
from typing import Any

from tfddl.runtime import library
from tfddl.runtime.watchdog import init_watchdog

DIRECTORY_VARIABLE, SIGNAL_VARIABLE = "TFDDL_DUMP_DIR", "TFDDL_DUMP_SIGNAL"
_DIRECTORY = "tfddl-dump"
_SIGNAL = "SIGUSR1"


def write_flight_record(directory: str | os.PathLike[str] | None = None) -> str:
    """Writes the last operations of this rank, and the stacks of its Python threads, for `tfddl analyze DIRECTORY`.

    Only this rank writes: each rank that is to be compared has to call it, from any thread. A rank that cannot, because it
    hangs, writes its record when it receives the signal `TFDDL_DUMP_SIGNAL`.

    Args:
        directory: Folder of the record, which is made if it is missing. Defaults to `TFDDL_DUMP_DIR`, or
            `tfddl-dump` in the folder that was the current one at `hvd.init()`.

    Returns:
        The path of the file, `DIRECTORY/rank<N>.json`. An earlier record of this rank there is replaced.

    Raises:
        OSError: The file cannot be written.
    """
    start()
    native = library.native()
    path = native.tfddl_record_write(
        os.fsencode(os.path.abspath(directory)) if directory else b"", b"hvd.write_flight_record()"
    )
    if path is None:
        raise OSError(
            f"The flight record was not written: {native.tfddl_last_error().decode()}. Set TFDDL_DUMP_DIR to a folder that "
            "this user may write to."
        )
    return os.fsdecode(path)


@functools.cache
def start() -> None:
    """Makes this process write its record when the job stalls, and on `TFDDL_DUMP_SIGNAL`.

    Raises:
        ValueError: `TFDDL_DUMP_SIGNAL` is no signal, or SIGKILL or SIGSTOP, which no program can handle.
    """
    number = _dump_signal()
    directory = os.environ.get(DIRECTORY_VARIABLE, "")
    stacks = _stacks()
    native = library.native()
    native.tfddl_record_start(
        os.fsencode(os.path.abspath(directory or _DIRECTORY)), bool(directory), (ctypes.c_int * 5)(*stacks)
    )
    numbers = init_watchdog.launched()
    native.tfddl_record_job(b"", *((numbers.rank, numbers.size) if numbers else (0, 1)))
    if number is None or native.tfddl_record_on(number, number.name.encode()) == 0:
        return
    if os.environ.get(SIGNAL_VARIABLE):
        print(
            f"tfddl: {number.name} writes no flight record, since the program handles that signal itself; "
            f"set {SIGNAL_VARIABLE} to another signal.",
            file=sys.stderr,
        )


def joined(world: Any) -> None:
    """Gives the record the name of the job, which all ranks of `world` (an mpi4py communicator) share."""
    job = world.bcast(secrets.token_hex(8))
    library.native().tfddl_record_job(job.encode(), world.rank, world.size)


def _dump_signal() -> signal.Signals | None:
    text = os.environ.get(SIGNAL_VARIABLE, "").strip().upper() or _SIGNAL
    if text == "0":
        return None
    handled = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
    names = {name: number for number in handled for name in (number.name, number.name[3:], str(int(number)))}
    if text not in names:
        raise ValueError(
            f"{SIGNAL_VARIABLE} must be the name or the number of a signal that a program can handle, or 0 for none: set "
            f"{SIGNAL_VARIABLE}=SIGUSR2. Received: {os.environ[SIGNAL_VARIABLE]!r}"
        )
    return names[text]


def _stacks() -> list[int]:
    """The two ways to the stacks of all threads: numbers of `PythonStacks` in custom_ops/core/trace/flight_record.h."""
    ask, done = os.eventfd(0), os.eventfd(0)
    file, signal_file = os.memfd_create("tfddl-stacks"), os.memfd_create("tfddl-stacks")
    threading.Thread(target=_answer, args=(ask, done, file), name="tfddl-stacks", daemon=True).start()
    # `signal.valid_signals()` leaves out those that the C library uses.
    free = (
        number
        for number in sorted(signal.valid_signals(), reverse=True)
        if number > signal.SIGRTMIN and signal.getsignal(number) == signal.SIG_DFL
    )
    number = int(next(free, 0))
    if number:
        faulthandler.register(number, file=signal_file, all_threads=True)
    return [ask, done, file, number, signal_file]


def _answer(ask: int, done: int, file: int) -> None:
    while True:
        os.eventfd_read(ask)
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        faulthandler.dump_traceback(file, all_threads=True)
        os.eventfd_write(done, 1)
