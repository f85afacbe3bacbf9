"""Waits for files and for times, and calls what belongs to them, on one thread."""

from __future__ import annotations

import heapq
import itertools
import selectors
import time
from collections.abc import Callable
from typing import Protocol

_LONGEST_TURN_S = 86400.0  # a selector takes no time beyond 24 days


class _File(Protocol):
    def fileno(self) -> int: ...


class Loop:
    """The files and the times of one job."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._plan: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def watch(self, file: int | _File, action: Callable[[], None]) -> None:
        """Calls `action` in each turn in which the file can be read."""
        self._selector.register(file, selectors.EVENT_READ, action)

    def forget(self, file: int | _File) -> None:
        """Watches a file no longer."""
        self._selector.unregister(file)

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Calls `action` after so many seconds."""
        heapq.heappush(self._plan, (time.monotonic() + delay, next(self._order), action))

    def postpone(self, seconds: float) -> None:
        """Calls all that is due later by so many seconds later: this process was stopped."""
        self._plan = [(due + seconds, number, action) for due, number, action in self._plan]

    def turn(self, *, wait: bool) -> bool:
        """Handles the events that are there, or the next ones. Returns whether a file could be read."""
        events = self._selector.select(self._time_to_next() if wait else 0.0)
        for key, _ in events:
            key.data()
        while self._plan and self._plan[0][0] <= time.monotonic():
            heapq.heappop(self._plan)[2]()
        return bool(events)

    def close(self) -> None:
        """Watches no file any longer."""
        self._selector.close()

    def _time_to_next(self) -> float | None:
        return min(max(0.0, self._plan[0][0] - time.monotonic()), _LONGEST_TURN_S) if self._plan else None
