"""The starts of an elastic job: after a loss, and when hosts come and go."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from tfddl.launch.elastic.hand_over import HandOver
from tfddl.launch.elastic.pool import HostPool
from tfddl.launch.elastic.restart import (
    Limits,
    Placement,
    Restarts,
    host_of_each,
    lost_ranks,
    processes,
    without_lost,
)
from tfddl.launch.elastic.survival import Survival
from tfddl.launch.outcome import Verdict
from tfddl.launch.signals import wait_for_signal

# A job that ends sooner each time starts again after a growing wait.
_SOON_S, _LONGEST_WAIT_S = 30.0, 60.0
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)
_LOOK_S = 0.2  # between two looks whether enough hosts are there


class Session:
    """An elastic job from its first start to its end.

    Args:
        once: Runs the job at a place. Returns how it ended, and a function that prints lines.
        advise: Makes the line after the error of a rank; empty for none.
        limits: Those of the user.
        pool: The hosts.
        timeout: For how many seconds the job waits for hosts, if there are too few.
    """

    def __init__(
        self,
        once: Callable[[Placement, HandOver, Survival], tuple[Verdict, Callable[..., None]]],
        advise: Callable[[Verdict], str],
        limits: Limits,
        pool: HostPool,
        timeout: float,
    ) -> None:
        self._once, self._advise, self._limits = once, advise, limits
        self._pool, self._timeout = pool, timeout
        self._say: Callable[..., None] = print
        self._restarts = Restarts(limits.restarts)
        self._lost: list[str] = []

    def run(self, place: Placement) -> Verdict:
        """Runs the job to its end, and prints the last words.

        Args:
            place: Where it starts first.

        Returns:
            How it ended.
        """
        soon = 0
        while True:
            begun = time.monotonic()
            self._pool.starts(place)
            survival = Survival(self._limits, self._restarts)
            verdict, self._say = self._once(place, HandOver(self._pool, self._restarts), survival)
            self._restarts.count += survival.gone_on
            self._restarts.promised = 0
            if verdict.ranks:
                self._pool.ran(verdict.left)
            self._say(verdict.words)
            if verdict.handed_over:
                after, line, soon = *self._after_hand_over(verdict), 0
            else:
                after, line = self._after_end(verdict, place)
                soon = soon + 1 if time.monotonic() - begun < _SOON_S else 0
            wait = min(2.0 ** min(soon - 2, 16), _LONGEST_WAIT_S) if soon > 1 else 0.0
            later = f" in {wait:g} s" if after and wait else ""
            self._say("" if after else self._advise(verdict), line and f"tfddlrun: {line}{later}")
            if verdict.survived and not verdict.lost:
                self._lost.append(lost_ranks(verdict.survived, verdict.ranks))
            if after is None:
                if verdict.handed_over:  # the program has not come to its end
                    verdict.code = 1
                if verdict.code == 0 and self._lost:
                    self._say(f"tfddlrun: the job has ended well, though {'; '.join(self._lost)}")
                return verdict
            wait_for_signal(wait)
            self._restarts.count += 1
            if verdict.lost:
                self._lost.append(lost_ranks(verdict.lost, verdict.ranks))
            place = after

    def _after_hand_over(self, verdict: Verdict) -> tuple[Placement | None, str]:
        after = self._pool.next_placement(verdict.left)
        changes = self._pool.changes(after, verdict.left) or "and have changed back"
        if self._pool.too_few(after):  # hosts have gone since the ranks were told
            return self._again(verdict, f"hosts changed ({changes})")
        return after, f"hosts changed ({changes}); starting again with {processes(after.processes)}"

    def _after_end(self, verdict: Verdict, place: Placement) -> tuple[Placement | None, str]:
        if not verdict.lost:
            return self._after_failed_start(verdict, place) if self._pool.discovered else (None, "")
        lost = lost_ranks(verdict.lost, verdict.ranks)
        if not self._pool.discovered:
            left = without_lost(verdict, place, self._limits.replace)
            return self._again(verdict, lost, self._pool.without_leaving(left))
        names = host_of_each(verdict.ranks, place)
        self._pool.failed(sorted({names[rank.number] for rank in verdict.lost}))
        return self._again(verdict, lost)

    def _after_failed_start(self, verdict: Verdict, place: Placement) -> tuple[Placement | None, str]:
        """Goes on without the hosts that do not answer, if mpirun has started no rank."""
        if verdict.code == 0 or verdict.ranks or verdict.code - 128 in _SIGNALS:
            return None, ""
        silent = self._pool.unreachable(place.hosts)
        return self._again(verdict, f"{', '.join(silent)} could not be reached") if silent else (None, "")

    def _again(
        self, verdict: Verdict, reason: str, at: Placement | None = None
    ) -> tuple[Placement | None, str]:
        if refusal := self._restarts.refusal():
            return None, f"{reason}; {refusal}"
        after = at or self._wait_for_hosts(verdict)
        if lacks := self._pool.too_few(after):
            return None, f"{reason}; {lacks}"
        number = processes(after.processes)
        return after, f"{reason}; starting again with {number}, restart {self._restarts.count + 1}"

    def _wait_for_hosts(self, verdict: Verdict) -> Placement:
        """Waits until enough hosts are there, a signal comes, or the wait is too long.

        Returns:
            Where the job would start then.
        """
        deadline, said = time.monotonic() + self._timeout, False
        while True:
            after = self._pool.next_placement(verdict.left)
            self._say(*(f"tfddlrun: {line}" for line in self._pool.lines()))
            lacks = self._pool.too_few(after)
            if not lacks or not self._pool.discovered or time.monotonic() >= deadline:
                return after
            if not said:
                self._say(f"tfddlrun: waiting {self._timeout:g} s at most for more hosts: {lacks}")
                said = True
            if wait_for_signal(_LOOK_S):
                return after
