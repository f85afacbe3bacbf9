"""Decides whether a start of the job goes on in its processes when ranks have died."""

from __future__ import annotations

from collections.abc import Iterable

from tfddl.launch.elastic.restart import Limits, Restarts
from tfddl.launch.outcome import Rank

# For the ranks that are left to say that they go on. They notice the loss in the first collective after it.
LIMIT_S = 60.0


class Survival:
    """The losses of one start.

    Args:
        limits: Those of the user.
        restarts: How often the job has started again, or has gone on.

    Attributes:
        losses: How often ranks have died without whom the start may go on.
        gone_on: After how many of them it has gone on.
    """

    def __init__(self, limits: Limits, restarts: Restarts) -> None:
        self._limits, self._restarts = limits, restarts
        self._dead: list[Rank] = []
        self.losses = self.gone_on = 0

    def allows(self, dead: Rank, ranks: Iterable[Rank]) -> bool:
        """Whether the start may go on without one more rank.

        Args:
            dead: The rank that has died.
            ranks: All ranks of the start.
        """
        left = len(self._left(ranks)) - 1
        if left < max(self._limits.least, 1) or self._restarts.refusal():
            return False
        self._dead.append(dead)
        self.losses += 1
        self._restarts.promised += 1
        return True

    def left_early(self, ranks: Iterable[Rank]) -> list[Rank]:
        """The ranks that others have lost, and that ended with exit code 0, as by os._exit(0) in the middle."""
        left = self._left(ranks)
        fewest = min((rank.goes_on_with for rank in left if rank.goes_on_with), default=len(left))
        ended = [
            rank for rank in left if rank.status == 0 and not rank.stopped and rank.goes_on_with != fewest
        ]
        return ended if fewest < len(left) else []

    def survived(self, ranks: Iterable[Rank]) -> tuple[Rank, ...]:
        """The ranks that have died, if all that are left have said that they go on without them."""
        left = self._left(ranks)
        go_on = all(rank.goes_on_with == len(left) for rank in left)
        self.gone_on = self.losses if go_on else self.gone_on
        return tuple(sorted(self._dead, key=lambda rank: rank.number)) if go_on else ()

    def _left(self, ranks: Iterable[Rank]) -> list[Rank]:
        return [rank for rank in ranks if rank not in self._dead]
