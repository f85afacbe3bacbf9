"""Hosts that have failed are set aside for a time, which doubles with each failure of the same host."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

LEAST_S, MOST_S = 1.0, 3600.0  # Horovod's limits of --blacklist-cooldown-range


class HostCooldown:
    """The hosts that a job does not use for a time.

    Args:
        least: The shortest time, in seconds.
        most: The longest time, in seconds.
        clock: Returns the seconds since some moment.
        chance: Returns a number from 0 to 1.
    """

    def __init__(
        self,
        least: float = LEAST_S,
        most: float = MOST_S,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._least, self._most, self._clock, self._chance = least, most, clock, chance
        self._failures: Counter[str] = Counter()
        self._until: dict[str, float] = {}

    def add(self, host: str) -> float:
        """Sets a host aside after a failure.

        Returns:
            For how many seconds: least * 2 ** failures, and up to `least` more by chance, but `most` at most.
        """
        self._failures[host] += 1
        doublings = min(self._failures[host], 32)  # 2 ** 1100 is no float
        seconds = min(self._least * (2.0**doublings + self._chance()), self._most)
        self._until[host] = self._clock() + seconds
        return seconds

    def holds(self, host: str) -> bool:
        """Whether the time of a host has not passed."""
        return self._until.get(host, 0.0) > self._clock()
