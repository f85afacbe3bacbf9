"""Where the processes of an elastic job run, before and after a loss, and how often the job may start again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tfddl.launch.hosts import Host, names_of
from tfddl.launch.outcome import Rank, Verdict


@dataclass(frozen=True)
class Placement:
    """Where the processes of a job run.

    Attributes:
        processes: Their number.
        hosts: Hosts with slots. Empty where mpirun chooses: on this host, or by a scheduler.
    """

    processes: int
    hosts: list[Host]


@dataclass(frozen=True)
class Limits:
    """How often and how far a job may shrink.

    Attributes:
        least: The smallest number of processes.
        restarts: How often the job may start again. None: without limit.
        replace: Whether lost processes are started again, where their host is left.
        most: The largest number of processes, for a job that gets new hosts. None: without limit.
    """

    least: int
    restarts: int | None
    replace: bool
    most: int | None = None


@dataclass
class Restarts:
    """What `--reset-limit` limits: how often a job has started again, or has gone on in its processes after a loss.

    Attributes:
        limit: The largest number. None: without limit.
        count: How often until the present start.
        promised: How often in the present start or at its end: its ranks have been told of a change of hosts, or go on
            after losses.
    """

    limit: int | None
    count: int = 0
    promised: int = 0

    def refusal(self) -> str:
        """Why the job may not start again or go on once more. Empty if it may."""
        if self.limit is None or self.count + self.promised < self.limit:
            return ""
        return f"--reset-limit {self.limit} lets the job start again no more"


def processes(number: int) -> str:
    """`1 process`, `2 processes`."""
    return f"{number} process{'' if number == 1 else 'es'}"


def host_of_each(ranks: Iterable[Rank], place: Placement) -> dict[int, str]:
    """The host of each rank, by the name that the placement has for it."""
    ranks = list(ranks)
    if not place.hosts:
        return {rank.number: rank.host for rank in ranks}
    names = {machine: names_of(machine, place.hosts) for machine in {rank.host for rank in ranks}}
    # A host may have been named by an address. mpirun fills the slots in their order, unless --mpi-args maps otherwise.
    slots = [host.name for host in place.hosts for _ in range(host.slots)]
    return {
        rank.number: names[rank.host][0] if len(names[rank.host]) == 1 else slots[rank.number]
        for rank in ranks
    }


def lost_ranks(lost: Collection[Rank], of: Collection[Rank]) -> str:
    """Says which ranks of all ranks were lost."""
    several = len({rank.host for rank in of}) > 1
    ranks = ", ".join(f"{rank.number} on {rank.host}" if several else str(rank.number) for rank in lost)
    many = len(lost) > 1
    return f"rank{'s' if many else ''} {ranks} of {len(of)} {'were' if many else 'was'} lost"


def without_lost(verdict: Verdict, before: Placement, replace: bool) -> Placement:
    """Where a job starts again on fixed hosts.

    Args:
        verdict: How the job ended.
        before: Where its processes ran.
        replace: Whether lost processes are started again, where their host is left.
    """
    place = host_of_each(verdict.ranks, before)
    gone = _hosts_gone(verdict, place)
    if len(set(place.values())) < 2:
        left = before.processes - (0 if replace else len(verdict.lost))
        hosts = [Host(host.name, left) for host in before.hosts if host.name in place.values()]
        return Placement(left, hosts)
    ran = Counter(place.values())
    if not replace:
        ran -= Counter(place[rank.number] for rank in verdict.lost)
    left_on = [Host(name, count) for name, count in ran.items() if name not in gone]
    return Placement(sum(host.slots for host in left_on), left_on)


def _hosts_gone(verdict: Verdict, place: dict[int, str]) -> set[str]:
    """Hosts from which no process has reported its end, so that none of them answers."""
    silent = {place[rank.number] for rank in verdict.ranks if rank.status is None}
    return silent - {place[rank.number] for rank in verdict.ranks if rank.status is not None}
