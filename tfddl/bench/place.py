"""Where the workers of a benchmark run."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tfddl.bench import lab
from tfddl.launch.elastic.pool import filled
from tfddl.launch.hosts import Host, all_local, slots_taken


@dataclass(frozen=True)
class Place:
    """The hosts of the workers, which are the same for all adapters.

    Attributes:
        ranks: The number of workers of an adapter.
        hosts: The hosts, each with its number of workers; empty for this host.
        options: Options of tfddlrun that it needs to reach them.
    """

    ranks: int
    hosts: tuple[Host, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """`hosts` of the adapters that have a meaning here, besides "any"; "" on one host that is not this one."""
        if len(self.hosts) > 1:
            return "several"
        return "" if self.is_remote else "one"

    @property
    def is_remote(self) -> bool:
        """Whether workers run on other hosts."""
        return not all_local(self.hosts)

    @property
    def ranks_on_a_machine(self) -> int:
        """The workers that share the cores of a machine, on the fullest one."""
        return self.ranks if _is_one_machine() or not self.hosts else max(host.slots for host in self.hosts)

    def launcher(self, variables: Iterable[str]) -> list[str]:
        """The line in front of the command of a worker, to which the variables are passed."""
        line = [sys.executable, "-m", "tfddl.launch.run", "-np", str(self.ranks), *self.options]
        if self.hosts:
            line += ["-H", ",".join(f"{host.name}:{host.slots}" for host in self.hosts)]
            line += [item for name in variables for item in ("-x", name)]
        return line

    def addresses(self, ports: Sequence[int]) -> tuple[str, ...]:
        """`host:port` for each rank. The other hosts do not know this one as localhost."""
        own = socket.gethostname() if self.is_remote else "localhost"
        names = [own if host.name == "localhost" else host.name for host in self._host_of_each()]
        return tuple(f"{name}:{port}" for name, port in zip(names, ports, strict=True))

    def core(self, rank: int) -> int:
        """A number that no other rank on the machine has. The hosts of a lab are one machine."""
        hosts = self._host_of_each()
        return rank if _is_one_machine() else hosts[:rank].count(hosts[rank])

    def _host_of_each(self) -> list[Host]:
        """The host of each rank. tfddlrun fills the hosts one after the other."""
        return [host for host in self.hosts or [Host("localhost", self.ranks)] for _ in range(host.slots)]


def fill(hosts: Sequence[Host], ranks: int | None) -> tuple[int, tuple[Host, ...]]:
    """Gives ranks to the slots of hosts, one host after the other, as tfddlrun does.

    Args:
        hosts: The hosts and their slots.
        ranks: The number of ranks; None for one in each slot.

    Returns:
        The number of ranks, and the hosts that have some, each with the number of its ranks.

    Raises:
        ValueError: There are more ranks than slots.
    """
    place = filled(hosts, slots_taken(hosts, ranks))
    return place.processes, tuple(place.hosts)


def _is_one_machine() -> bool:
    return lab.LAB in os.environ
