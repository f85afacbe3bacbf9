"""How long tfddlrun waits for a slow reader of its output."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import BinaryIO

from tfddl.launch import signals

# After a signal, for a reader of the output that reads nothing, and in all for a slow reader: then the rest is dropped.
_UNREAD_S = 1.0
_READ_SLOWLY_S = 5.0


class SlowReader:
    """The waits for the readers of one start: without a limit, but short after a signal that ends the job.

    Args:
        on_signals: Handles the signals that come during a wait.

    Attributes:
        interrupted: Whether a signal ends the job.
        over: Whether the job has ended, so that signals are for the next start.
    """

    def __init__(self, on_signals: Callable[[], None]) -> None:
        self._on_signals = on_signals
        self._unread: set[BinaryIO] = set()  # files whose reader has stopped after the signal
        self._left_s = _READ_SLOWLY_S
        self.interrupted = self.over = False

    def give_up(self) -> None:
        """Waits no longer."""
        self._left_s = 0.0

    def begin_last_words(self) -> None:
        """The job has ended, and its last words get a time of their own."""
        self.over = True
        self._left_s = _READ_SLOWLY_S

    def may_write(self, file: BinaryIO) -> bool:
        """Waits until a file of the printer takes bytes; not long after a signal, since nobody may read it, or slowly.

        Returns:
            Whether it takes bytes.
        """
        while not self.interrupted:
            if not signals.come_before(file):
                return True
            self._on_signals()
        began = time.monotonic()
        while not self.over and signals.come_before(file, self._limit(file)):
            self._on_signals()
        limit = self._limit(file)
        may = signals.takes_bytes(file, limit if self.over else 0.0)
        if not may and limit == _UNREAD_S:
            self._unread.add(file)
        self._left_s = max(0.0, self._left_s - (time.monotonic() - began))
        return may

    def _limit(self, file: BinaryIO) -> float:
        return 0.0 if file in self._unread else min(_UNREAD_S, self._left_s)
