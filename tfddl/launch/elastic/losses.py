"""The losses of a running start: they end it, unless the ranks that are left go on in their processes."""

from __future__ import annotations

from functools import partial

from tfddl.launch.elastic.survival import LIMIT_S, Survival
from tfddl.launch.outcome import Rank
from tfddl.launch.supervision.ending import Ending
from tfddl.launch.supervision.loop import Loop


class Losses:
    """Asks a `Survival` about each loss.

    Args:
        survival: None if no start goes on after a loss.
        ranks: By number, those that have started.
        processes: The number of ranks.
        ending: It ends the start.
        loop: It calls what is due later.
    """

    def __init__(
        self, survival: Survival | None, ranks: dict[int, Rank], processes: int, ending: Ending, loop: Loop
    ) -> None:
        self._survival, self._ranks, self._processes = survival, ranks, processes
        self._ending, self._loop = ending, loop

    def survived(self) -> tuple[Rank, ...]:
        """The ranks without which the others go on."""
        return self._survival.survived(self._ranks.values()) if self._survival else ()

    def may_go_on_without(self, rank: Rank) -> bool:
        """Whether a rank that has failed does not end the start."""
        if self._survival is None or self._ending.begun:
            return False
        if not rank.died or len(self._ranks) < self._processes:
            return False
        if not self._survival.allows(rank, self._ranks.values()):
            return False
        self._loop.after(LIMIT_S, partial(self._on_limit, self._survival, self._survival.losses))
        return True

    def count_those_that_left(self) -> None:
        """Looks for ranks that have ended well while others lost them."""
        if self._survival is None or self._ending.begun:
            return
        for rank in self._survival.left_early(self._ranks.values()):
            if not self._survival.allows(rank, self._ranks.values()):
                self._ending.begin()

    def _on_limit(self, survival: Survival, losses: int) -> None:
        if survival.losses == losses and not self.survived():
            self._ending.begin()
