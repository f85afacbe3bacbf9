"""The hosts that an elastic job may use: those that a script names and that answer, or those of its start.

A host leaves the pool when the script no longer names it, when it has said that it leaves, or for a time after a failure.
The thread of the script and tfddlrun's loop share a pool.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tfddl.launch.elastic.cooldown import HostCooldown
from tfddl.launch.elastic.restart import Limits, Placement, host_of_each, processes
from tfddl.launch.hosts import Host
from tfddl.launch.outcome import Rank

_PROBES_AT_ONCE = 16


class HostPool:
    """The hosts of a job.

    Args:
        limits: Those of the user.
        cooldown: The hosts that have failed.
        prepare: Makes a host ready for the job, and returns whether it answers.
        discovered: Whether `found` will say which hosts there are. Without it the job keeps to the hosts of its start.
        on_disk: Whether commits are on a disk too, so that the job may move to other hosts altogether.
    """

    def __init__(
        self,
        limits: Limits,
        cooldown: HostCooldown,
        prepare: Callable[[Host], bool],
        discovered: bool,
        on_disk: bool,
    ) -> None:
        self.discovered = discovered
        self._limits, self._cooldown, self._prepare, self._on_disk = limits, cooldown, prepare, on_disk
        self._lock = threading.RLock()
        self._current = Placement(0, [])
        self._named: list[Host] = []
        self._ready: set[str] = set()  # hosts that have answered
        self._leaving: set[str] = set()
        self._used: dict[str, Host] = {}
        self._holders: set[str] = set()  # hosts of the ranks of the last start: they have its commits
        self._lines: list[str] = []
        self._ours, self._theirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """A descriptor that is readable when something has changed, until `lines` is called."""
        return self._ours

    def close(self) -> None:
        """Closes the descriptor. The thread of the script has ended before."""
        os.close(self._ours)
        os.close(self._theirs)

    def lines(self) -> list[str]:
        """Takes what is to be said."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._ours, 4096)
        with self._lock:
            lines, self._lines = self._lines, []
        return lines

    def say(self, line: str) -> None:
        """Notes a line, which tfddlrun prints. Any thread may call it."""
        with self._lock:
            self._lines.append(line)
        self._wake()

    @property
    def used(self) -> list[Host]:
        """All hosts on which the job has run."""
        return list(self._used.values())

    def starts(self, place: Placement) -> None:
        """The job starts there."""
        with self._lock:
            self._current = place
            self._named = self._named or place.hosts
            self._ready |= {host.name for host in place.hosts}
            self._used |= {host.name: host for host in place.hosts}

    def ran(self, ranks: Iterable[Rank]) -> None:
        """The start has ended, and these are the ranks that it had then."""
        with self._lock:
            self._holders = set(host_of_each(ranks, self._current).values())

    def has_old_commits(self, host: str) -> bool:
        """Whether the job has run on a host, and later without it."""
        holders = self._holders | {each.name for each in self._current.hosts}
        return host in self._used and bool(self._holders) and host not in holders

    def found(self, hosts: list[Host]) -> None:
        """The script has named these hosts. tfddlrun asks new hosts whether they answer."""
        with self._lock:
            names = {host.name for host in hosts}
            self._leaving &= names  # a host that comes back may have the name of one that has left
            self._ready &= names
            new = [host for host in hosts if host.name not in self._ready and self._is_usable(host.name)]
        self._ask(new)
        with self._lock:
            before, self._named = self._named, hosts
        if new or before != hosts:
            self._wake()

    def unreachable(self, hosts: Sequence[Host]) -> list[str]:
        """Asks hosts again after a start that has failed, and sets those aside that do not answer."""
        with self._lock:
            self._ready -= {host.name for host in hosts}
        self._ask(hosts)
        return [host.name for host in hosts if host.name not in self._ready]

    def leaves(self, rank: Rank) -> None:
        """The host of a rank has said that it leaves."""
        with self._lock:
            host = host_of_each([rank], self._current)[rank.number]
            self._leaving.add(host)
        self._wake()

    def without_leaving(self, place: Placement) -> Placement:
        """A placement less the hosts that leave."""
        with self._lock:
            hosts = [host for host in place.hosts if host.name not in self._leaving]
        return Placement(sum(host.slots for host in hosts), hosts) if hosts != place.hosts else place

    def failed(self, hosts: Iterable[str]) -> None:
        """Sets hosts aside."""
        with self._lock:
            for host in hosts:
                self.say(f"{host} has failed and is set aside for {self._cooldown.add(host):.0f} s")
                self._ready.discard(host)

    def next_placement(self, ranks: Iterable[Rank]) -> Placement:
        """Where the job would start now.

        Args:
            ranks: Those of the present start.
        """
        with self._lock:
            if self.discovered:
                return self._fill()
            left = Counter(host_of_each(ranks, self._current).values())
            hosts = [Host(name, count) for name, count in left.items() if name not in self._leaving]
            return Placement(sum(host.slots for host in hosts), hosts)

    def changes(self, after: Placement, ranks: Iterable[Rank]) -> str:
        """The changes that another placement makes: `hostC:2 is new, hostB is gone`.

        Args:
            after: The placement.
            ranks: Those of the present start. Hosts may have more slots than ranks.
        """
        with self._lock:
            old = Counter(host_of_each(ranks, self._current).values())
            new = {host.name: host.slots for host in after.hosts}
            told = [
                f"{name}:{count} was {name}:{old[name]}" if name in old else f"{name}:{count} is new"
                for name, count in new.items()
                if old[name] != count
            ]
            gone = sorted(old.keys() - new.keys())
            told += [f"{name} {'leaves' if name in self._leaving else 'is gone'}" for name in gone]
            return ", ".join(told)

    def too_few(self, after: Placement, ranks: Iterable[Rank] = ()) -> str:
        """The processes or hosts that a placement lacks, in words. Empty if the job may start there.

        Args:
            after: The placement.
            ranks: Those of the present start, which all commit before its end. None after the end: the hosts of
                the last start have the commits.
        """
        least = max(self._limits.least, 1)
        if after.processes < least:
            return f"{processes(after.processes)} would be left, and --min-np asks for {least}"
        names = {host.name for host in after.hosts}
        with self._lock:
            holders = set(host_of_each(ranks, self._current).values()) or self._holders
        if holders and names and not (self._on_disk or holders & names):
            return (
                "the commits are in the memory of its hosts, and none of them would be left; see --state-dir"
            )
        return ""

    def _fill(self) -> Placement:
        """Fills the slots, first of the hosts that the job runs on, so that its ranks keep their places."""
        order = {host.name: number for number, host in enumerate(self._current.hosts)}
        named = sorted(self._named, key=lambda host: order.get(host.name, len(order)))
        usable = [host for host in named if host.name in self._ready and self._is_usable(host.name)]
        return filled(usable, self._limits.most)

    def _is_usable(self, host: str) -> bool:
        return host not in self._leaving and not self._cooldown.holds(host)

    def _ask(self, hosts: Sequence[Host]) -> None:
        if not hosts:
            return
        with ThreadPoolExecutor(_PROBES_AT_ONCE) as executor:
            answers = list(executor.map(self._prepare, hosts))
        with self._lock:
            for host, answered in zip(hosts, answers, strict=True):
                if answered:
                    self._ready.add(host.name)
                else:
                    seconds = self._cooldown.add(host.name)
                    self.say(f"{host.name} does not answer and is set aside for {seconds:.0f} s")

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._theirs, b"x")


def filled(hosts: Iterable[Host], most: int | None) -> Placement:
    """Takes slots in the order of the hosts, all or as many as `most`."""
    taken, count = [], 0
    for host in hosts:
        slots = host.slots if most is None else min(host.slots, most - count)
        if slots > 0:
            taken.append(Host(host.name, slots))
            count += slots
    return Placement(count, taken)
