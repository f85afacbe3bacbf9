"""Elastic jobs without processes: a pool of hosts, and a session whose starts end as a test says."""

import pytest

from tfddl.launch.elastic import session
from tfddl.launch.elastic.cooldown import HostCooldown
from tfddl.launch.elastic.hand_over import HandOver
from tfddl.launch.elastic.pool import HostPool, filled
from tfddl.launch.elastic.restart import Limits, Restarts
from tfddl.launch.outcome import Rank


class Pool(HostPool):
    """A pool of hosts that answer, except for those in `silent`."""

    def __init__(self, limits=None, discovered=True, on_disk=False):
        self.silent, self.asked = set(), []
        cooldown = HostCooldown(10.0, 100.0, clock=lambda: self.now, chance=lambda: 0.0)
        self.now = 0.0
        super().__init__(limits or Limits(1, None, False), cooldown, self._answer, discovered, on_disk)

    def _answer(self, host):
        self.asked.append(host.name)
        return host.name not in self.silent

    def runs(self, *hosts):
        """The job runs there. Returns its ranks."""
        place = filled(hosts, None)
        self.starts(place)
        names = [host.name for host in hosts for _ in range(host.slots)]
        return [Rank(number, name) for number, name in enumerate(names)]

    def told(self, ranks, restarts=0):
        """Whether the ranks are told, and the last line."""
        due = HandOver(self, Restarts(self._limits.restarts, restarts)).is_due(ranks)
        return due, (self.lines() or [""])[-1]


def starts(pool, place, *ends):
    """Runs a session whose starts end so, or do so. Returns their places, and what was said."""
    places, said, left = [], [], iter(ends)

    def once(place, hand_over, survival):
        places.append(place)
        end = next(left)
        return end(hand_over, survival) if callable(end) else end, lambda *texts: said.extend(
            filter(None, texts)
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "wait_for_signal", lambda seconds: 0)
        session.Session(once, lambda verdict: "", pool._limits, pool, 0.0).run(place)
    assert next(left, None) is None
    return places, said
