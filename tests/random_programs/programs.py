"""Random programs of collectives in process sets whose members join at different times."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from tests.random_programs.calls import Barrier, Broadcast, Call, Meeting
from tests.random_programs.drawn_calls import calls
from tfddl.ops.join import AVERAGE_OVER

IN_ORDER = "eagerly"
"""The way in which a rank makes a call once the call before has ended."""
BY_INDEX = "in_a_function_without_names"
"""The way in which the name of a call follows from its index among the calls of its set."""
WAYS = (IN_ORDER, "in_threads", "in_a_function", BY_INDEX, "in_a_session")
"""The names of functions of ways.py."""
REFUSABLE = (IN_ORDER, "in_threads")
"""The ways in which one call can fail alone."""


@dataclasses.dataclass(frozen=True)
class Group:
    """A process set.

    Attributes:
        ranks: Its members.
        ends: By member, the number of turns after which it joins; None if no member joins.
        average_over: The argument of `join`.
    """

    ranks: tuple[int, ...]
    ends: tuple[int, ...] | None = None
    average_over: str = "size"

    def meeting(self, turn: int) -> Meeting:
        indices = range(len(self.ranks))
        present = tuple(index for index in indices if self.ends is None or turn < self.ends[index])
        return Meeting(self.ranks, present, self.average_over)

    def attends(self, rank: int, turn: int) -> bool:
        return rank in self.ranks and self.ranks.index(rank) in self.meeting(turn).present

    def joins(self, rank: int, turn: int) -> bool:
        """Whether the rank joins before this turn."""
        return rank in self.ranks and self.ends is not None and self.ends[self.ranks.index(rank)] == turn


@dataclasses.dataclass(frozen=True)
class Program:
    """A program for all ranks.

    Attributes:
        groups: The process sets, all ranks first.
        static: The number of the other process sets that `init` makes.
        calls: The calls of one turn.
        group_indices: By call, the index of its group.
        orders: By rank, the order of its calls.
        way: The way to make the calls, one of `WAYS`.
        turns: The number of turns in a round, each with new values.
        rounds: The number of rounds. The joins of the groups are repeated in each round.
    """

    groups: tuple[Group, ...]
    static: int
    calls: tuple[Call, ...]
    group_indices: tuple[int, ...]
    orders: tuple[tuple[int, ...], ...]
    way: str
    turns: int
    rounds: int

    def group(self, index: int) -> Group:
        """The group of a call."""
        return self.groups[self.group_indices[index]]

    def made_by(self, rank: int, turn: int) -> list[int]:
        """The calls of a rank in this turn of a round, in its order."""
        return [index for index in self.orders[rank] if self.group(index).attends(rank, turn)]


@st.composite
def programs(draw: Any, size: int, way: str, sets: bool, joins: bool) -> Program:
    """A program for `size` ranks; with or without process sets, with or without ranks that join."""
    turns = draw(st.integers(2 if joins else 1, 3 if joins else 2))
    members = st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1).map(sorted).map(tuple)
    ranks = draw(st.lists(members, min_size=1, max_size=3, unique=True)) if sets else []
    groups = [Group(one) for one in (tuple(range(size)), *ranks)]
    if joins:
        groups = [draw(joining(group, turns)) for group in groups]
    made = draw(st.lists(calls, min_size=2, max_size=8 if sets else 6))
    group_indices = draw(st.lists(st.integers(0, len(ranks)), min_size=len(made), max_size=len(made)))
    if way not in REFUSABLE:
        made = [with_a_present_root(*pair, groups) for pair in zip(made, group_indices, strict=True)]
    orders = [
        sound_order(made, group_indices, way, draw(st.permutations(range(len(made))))) for _ in range(size)
    ]
    static = draw(st.integers(0, len(ranks)))
    rounds = draw(st.integers(1, 2)) if joins else 1
    return Program(
        tuple(groups), static, tuple(made), tuple(group_indices), tuple(orders), way, turns, rounds
    )


@st.composite
def joining(draw: Any, group: Group, turns: int) -> Group:
    """The group with members that join early; in a quarter of the cases without."""
    if draw(st.integers(0, 3)) == 0:
        return group
    count = len(group.ranks)
    ends = draw(st.lists(st.integers(0, turns), min_size=count, max_size=count))
    return Group(group.ranks, tuple(ends), draw(st.sampled_from(AVERAGE_OVER)))


def with_a_present_root(call: Call, index: int, groups: list[Group]) -> Call:
    """Chooses a root that joins last: the error of a broadcast from a joined rank would cancel other calls of its step."""
    ends = groups[index].ends
    if not isinstance(call, Broadcast) or ends is None:
        return call
    return dataclasses.replace(call, root=ends.index(max(ends)))


def sound_order(made: list[Call], group_indices: list[int], way: str, wish: list[int]) -> tuple[int, ...]:
    """The order nearest to `wish` that cannot deadlock."""

    def fixed(one: int, other: int) -> bool:
        # A tf.function runs its barriers one after the other.
        barriers = isinstance(made[one], Barrier) and isinstance(made[other], Barrier)
        return way == IN_ORDER or barriers or (way == BY_INDEX and group_indices[one] == group_indices[other])

    left, order = list(wish), []
    while left:
        order.append(next(i for i in left if not any(fixed(j, i) for j in left if j < i)))
        left.remove(order[-1])
    return tuple(order)
