"""Signals to tfddlrun. They end its waits, and its loop reads them from a pipe.

All starts of an elastic job share the pipe, so that a signal between two of them ends the second.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import BinaryIO

from tfddl.launch import rank_shim

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_pipe: list[int] = []


def watch() -> int:
    """Sends signals, also of children that end, to the pipe.

    Returns:
        The descriptor that is readable when there are signals to `take`.
    """
    if not _pipe:
        _pipe.extend(os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))
    ours, theirs = _pipe
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *rank_shim.PASSED_ON.values(), signal.SIGTSTP, *ENDS):
        # `nohup tfddlrun` outlives its terminal, and `tfddlrun &` in a script the Ctrl-C that ends the script.
        if number not in (signal.SIGTSTP, *ENDS) or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    return ours


def interrupt() -> None:
    """Before a job: the other signals that end it raise KeyboardInterrupt as well, with their number."""

    def raise_interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    for number in ENDS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, raise_interrupt)


def number_of(interrupt: KeyboardInterrupt) -> int:
    """The signal that has raised a KeyboardInterrupt, which has no number where Python or the user's code raises it."""
    number = interrupt.args[0] if interrupt.args else None
    return number if number in ENDS else signal.SIGINT


def take() -> bytes:
    """Takes the numbers of the signals that have come."""
    with contextlib.suppress(BlockingIOError):
        return os.read(_pipe[0], 512)
    return b""


def suspend() -> float:
    """Stops this process, as Ctrl-Z does. Returns when it goes on, or at once where nobody could let it go on.

    Returns:
        The seconds that it was stopped.
    """
    began = time.monotonic()
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)
    return time.monotonic() - began


def put_back(numbers: bytes) -> None:
    """Puts the signals that end a job back into the pipe, for the next reader."""
    os.write(_pipe[1], bytes(number for number in numbers if number in ENDS))


def wait_for_signal(seconds: float) -> int:
    """Waits between two jobs. A signal ends the wait, and then the second job.

    Returns:
        The signal; 0 if there was none.
    """
    waits = select.poll()
    waits.register(_pipe[0], select.POLLIN)
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and waits.poll(left * 1000):
        numbers = take()
        put_back(numbers)
        if signal.SIGTSTP in numbers:
            suspend()
        ends = [number for number in numbers if number in ENDS]
        if ends:
            return ends[0]
    return 0


def come_before(file: BinaryIO, seconds: float | None = None) -> bool:
    """Waits until signals come or a file takes bytes, at most `seconds`. Returns whether signals have come."""
    waits = select.poll()
    waits.register(file, select.POLLOUT)
    waits.register(_pipe[0], select.POLLIN)
    return _pipe[0] in dict(waits.poll(None if seconds is None else seconds * 1000))


def takes_bytes(file: BinaryIO, seconds: float) -> bool:
    """Waits until a file takes bytes, at most `seconds`. Returns whether the file does."""
    waits = select.poll()
    waits.register(file, select.POLLOUT)
    return bool(waits.poll(seconds * 1000))
