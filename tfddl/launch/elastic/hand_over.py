"""Decides whether a start of the job is to end at its next commit, so that the job starts again on other hosts."""

from __future__ import annotations

from collections.abc import Sequence

from tfddl.launch.elastic.pool import HostPool
from tfddl.launch.elastic.restart import Restarts
from tfddl.launch.outcome import Rank


class HandOver:
    """The change of hosts of one start.

    Args:
        pool: The hosts.
        restarts: How often the job has started again.
    """

    def __init__(self, pool: HostPool, restarts: Restarts) -> None:
        self._pool, self._restarts = pool, restarts
        self._told = False
        self._refused = ""

    def fileno(self) -> int:
        """A descriptor that is readable when hosts have changed."""
        return self._pool.fileno()

    def lines(self) -> list[str]:
        """Takes what is to be said."""
        return self._pool.lines()

    def leaves(self, rank: Rank) -> None:
        """The host of a rank will go away soon."""
        self._pool.leaves(rank)

    def is_due(self, ranks: Sequence[Rank]) -> bool:
        """Whether the ranks have to be told now. They are told once.

        Args:
            ranks: All ranks of this start that run; none while it begins or ends, or recovers from a loss.
        """
        if self._told or not ranks:
            return False
        after = self._pool.next_placement(ranks)
        changes = self._pool.changes(after, ranks)
        if not changes:
            return False
        reason = self._pool.too_few(after, ranks) or self._restarts.refusal()
        if reason:
            if self._refused != (refused := f"hosts have changed ({changes}), and the job goes on: {reason}"):
                self._pool.say(refused)
            self._refused = refused
            return False
        self._told = True
        self._restarts.promised += 1
        self._pool.say(f"hosts have changed ({changes}); the job starts again after its next commit")
        return True
