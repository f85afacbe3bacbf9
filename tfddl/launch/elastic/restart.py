"""Decides how an elastic job goes on: whether, with how many processes, and where."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tfddl.launch.hosts import Host
from tfddl.launch.outcome import Verdict


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
    """

    least: int
    restarts: int | None
    replace: bool


def next_placement(
    verdict: Verdict, before: Placement, limits: Limits, restarts: int
) -> tuple[Placement | None, str]:
    """Decides how a job goes on after its end.

    Args:
        verdict: How the job ended.
        before: Where its processes ran.
        limits: Those of the user.
        restarts: How often the job has started again before.

    Returns:
        Where to start again, or None; and the line that says so. The line is empty after an end that is no loss: a success,
        an exception of the program, or a signal to tfddlrun.
    """
    if not verdict.lost:
        return None, ""
    lost = _lost(verdict)
    if limits.restarts is not None and restarts >= limits.restarts:
        return None, f"{lost}; --reset-limit {limits.restarts} lets the job start again no more"
    after = _without(verdict, before, limits.replace)
    several = after.processes != 1
    number = f"{after.processes} process{'es' if several else ''}"
    if after.processes < max(limits.least, 1):
        return (
            None,
            f"{lost}; {number} {'are' if several else 'is'} left, and --min-np asks for {limits.least}",
        )
    return after, f"{lost}; starting again with {number}, restart {restarts + 1}"


def _lost(verdict: Verdict) -> str:
    several = len({rank.host for rank in verdict.ranks}) > 1
    ranks = ", ".join(
        f"{rank.number} on {rank.host}" if several else str(rank.number) for rank in verdict.lost
    )
    many = len(verdict.lost) > 1
    return f"rank{'s' if many else ''} {ranks} of {len(verdict.ranks)} {'were' if many else 'was'} lost"


def _without(verdict: Verdict, before: Placement, replace: bool) -> Placement:
    """The processes that are left, or with `replace` those of the hosts that are left."""
    # mpirun fills the slots of the hosts in their order. A host may have been named by an address.
    slots = [host.name for host in before.hosts for _ in range(host.slots)]
    place = {rank.number: slots[rank.number] if slots else rank.host for rank in verdict.ranks}
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
