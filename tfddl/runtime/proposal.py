"""Proposals of the ranks in a call that changes the process sets, and the change on which all agree."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tfddl.runtime.agreement import by_rank


@dataclass(frozen=True)
class Proposal:
    """One rank's call.

    Attributes:
        call: The name of the function.
        sets: For each set the kind of its argument, "ranks" or "comm", and its ranks.
        objection: The reason why this rank cannot go on; empty if it can.
    """

    call: str
    sets: list[tuple[str, list[int]]]
    objection: str = ""

    def encode(self) -> bytes:
        """One line."""
        return json.dumps([self.call, self.sets, self.objection]).encode()

    @staticmethod
    def decode(line: str) -> Proposal:
        """The proposal of which `encode` made the line."""
        call, sets, objection = json.loads(line)
        return Proposal(call, [(kind, ranks) for kind, ranks in sets], objection)

    def __str__(self) -> str:
        sets = ", ".join(
            str(ranks) if kind == "ranks" else f"communicator of {ranks}" for kind, ranks in self.sets
        )
        shown = "" if "Received: " in self.objection else f"({sets})"  # the objection quotes the sets
        return f"{self.call}{shown}" + (f": {self.objection}" if self.objection else "")


def agreed_groups(mine: Proposal, proposals: list[Proposal]) -> list[list[list[int]]]:
    """The groups of ranks for each set of the call: one group, or several if the ranks gave disjoint communicators.

    Args:
        mine: This rank's proposal.
        proposals: The proposals of all ranks, by rank.

    Raises:
        ValueError: On all ranks, if one objects or the proposals differ.
    """
    if any(proposal.objection for proposal in proposals):
        objections = {rank: proposal for rank, proposal in enumerate(proposals) if proposal.objection}
        raise ValueError(
            f"{mine.call} has failed on all ranks: see what these ranks object to. Received: {by_rank(objections)}"
        )
    groups = [_groups_of(slot, proposals) for slot in range(len(mine.sets))]
    alike = all(other.call == mine.call and len(other.sets) == len(mine.sets) for other in proposals)
    if not alike or any(found is None for found in groups):
        raise ValueError(
            "The ranks change the process sets by different calls: make the same calls on all ranks, members or not, in the "
            f"same order, with the same ranks. Received: {by_rank(dict(enumerate(proposals)))}"
        )
    return [found for found in groups if found is not None]


def _groups_of(slot: int, proposals: list[Proposal]) -> list[list[int]] | None:
    """The groups for one set of the call; None if the proposals differ."""
    given = [proposal.sets[slot] if slot < len(proposal.sets) else ("", []) for proposal in proposals]
    kinds = {kind for kind, _ in given}
    lists = [ranks for _, ranks in given]
    if kinds == {"ranks"}:
        return [lists[0]] if all(ranks == lists[0] for ranks in lists) else None
    if kinds != {"comm"}:
        return None
    found = sorted({tuple(ranks) for ranks in lists if ranks})
    fits = all(lists[rank] == list(group) for group in found for rank in group)
    return [list(group) for group in found] if fits else None
