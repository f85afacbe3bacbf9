"""Programs of collectives in process sets whose members stop at different times: what they are, and how they are drawn."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from tests.ops.calls import Barrier, Broadcast, Call, Meeting
from tests.ops.drawn_calls import calls
from tfddl.ops.join import AVERAGE_OVER

IN_ORDER = "eagerly"
"""The way in which a rank makes a call when the one before has ended."""
BY_PLACE = "in_a_function_without_names"
"""The way in which a call's name is its place among those of its set."""
WAYS = (IN_ORDER, "in_threads", "in_a_function", BY_PLACE, "in_a_session")
"""Functions of ways.py."""
REFUSABLE = (IN_ORDER, "in_threads")
"""Where one call can fail without others."""


@dataclasses.dataclass(frozen=True)
class Group:
    """A process set.

    Attributes:
        ranks: Its members.
        ends: By member, after how many turns it joins; None where nobody does.
        average_over: What they ask of `join`.
    """

    ranks: tuple[int, ...]
    ends: tuple[int, ...] | None = None
    average_over: str = "size"

    def meeting(self, turn: int) -> Meeting:
        places = range(len(self.ranks))
        present = tuple(place for place in places if self.ends is None or turn < self.ends[place])
        return Meeting(self.ranks, present, self.average_over)

    def attends(self, rank: int, turn: int) -> bool:
        return rank in self.ranks and self.ranks.index(rank) in self.meeting(turn).present

    def joins(self, rank: int, turn: int) -> bool:
        """Whether it joins before this turn."""
        return rank in self.ranks and self.ends is not None and self.ends[self.ranks.index(rank)] == turn


@dataclasses.dataclass(frozen=True)
class Program:
    """What all ranks run.

    Attributes:
        groups: The process sets, all ranks first.
        static: How many of the others are given to `init`.
        calls: Those of one turn.
        places: By call, which of the groups makes it.
        orders: By rank, in what order it makes the calls.
        way: How they are made, one of `WAYS`.
        turns: How often, each time with new values.
        rounds: How often all of that; in each one all groups join that do.
    """

    groups: tuple[Group, ...]
    static: int
    calls: tuple[Call, ...]
    places: tuple[int, ...]
    orders: tuple[tuple[int, ...], ...]
    way: str
    turns: int
    rounds: int

    def group(self, index: int) -> Group:
        """Of a call."""
        return self.groups[self.places[index]]

    def made_by(self, rank: int, turn: int) -> list[int]:
        """The calls that it makes in this turn of a round, in its order."""
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
    places = draw(st.lists(st.integers(0, len(ranks)), min_size=len(made), max_size=len(made)))
    if way not in REFUSABLE:
        made = [with_a_present_root(*pair, groups) for pair in zip(made, places, strict=True)]
    orders = [sound_order(made, places, way, draw(st.permutations(range(len(made))))) for _ in range(size)]
    static = draw(st.integers(0, len(ranks)))
    rounds = draw(st.integers(1, 2)) if joins else 1
    return Program(tuple(groups), static, tuple(made), tuple(places), tuple(orders), way, turns, rounds)


@st.composite
def joining(draw: Any, group: Group, turns: int) -> Group:
    """The group, where a member or more joins early; seldom as it is."""
    if draw(st.integers(0, 3)) == 0:
        return group
    count = len(group.ranks)
    ends = draw(st.lists(st.integers(0, turns), min_size=count, max_size=count))
    return Group(group.ranks, tuple(ends), draw(st.sampled_from(AVERAGE_OVER)))


def with_a_present_root(call: Call, place: int, groups: list[Group]) -> Call:
    """A broadcast comes from one of the last to join: an error of one call would cancel others of its step."""
    ends = groups[place].ends
    if not isinstance(call, Broadcast) or ends is None:
        return call
    return dataclasses.replace(call, root=ends.index(max(ends)))


def sound_order(made: list[Call], places: list[int], way: str, wish: list[int]) -> tuple[int, ...]:
    """The order nearest to the one wished for in which the ranks do not wait for each other."""

    def fixed(one: int, other: int) -> bool:
        # A tf.function runs its barriers one after the other.
        barriers = isinstance(made[one], Barrier) and isinstance(made[other], Barrier)
        return way == IN_ORDER or barriers or (way == BY_PLACE and places[one] == places[other])

    left, order = list(wish), []
    while left:
        order.append(next(i for i in left if not any(fixed(j, i) for j in left if j < i)))
        left.remove(order[-1])
    return tuple(order)
