"""Covering arrays: few combinations in which each pair of options meets at least once."""

import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

from tests.harness.rows import Combination

Option = tuple[str, Hashable]


def pairs_of(case: Mapping[str, Any]) -> set[frozenset[Option]]:
    """The pairs of options in one combination."""
    return {frozenset(pair) for pair in itertools.combinations(case.items(), 2)}


def all_pairs(parameters: Mapping[str, Sequence[Any]]) -> list[frozenset[Option]]:
    """Every pair of options of two different parameters, in a fixed order."""
    pairs = []
    for (first, values), (second, others) in itertools.combinations(parameters.items(), 2):
        pairs += [frozenset([(first, value), (second, other)]) for value in values for other in others]
    return pairs


def pairwise(
    parameters: Mapping[str, Sequence[Any]], impossible: Collection[frozenset[Option]] = ()
) -> list[Combination]:
    """Combines options greedily, the same way each time.

    Args:
        parameters: The options of each parameter.
        impossible: Pairs that must not meet.

    Returns:
        Combinations with one option for each parameter.
    """
    missing = dict.fromkeys(pair for pair in all_pairs(parameters) if pair not in impossible)
    cases = []
    while missing:
        case = dict(next(iter(missing)))
        for name, values in parameters.items():
            if name not in case:
                fitting = [
                    value
                    for value in values
                    if not any(frozenset([option, (name, value)]) in impossible for option in case.items())
                ]
                case[name] = max(fitting, key=lambda value: _new(case, name, value, missing))
        for pair in pairs_of(case):
            missing.pop(pair, None)
        cases.append(Combination({name: case[name] for name in parameters}))
    return cases


def _new(case: Mapping[str, Any], name: str, value: Any, missing: Mapping[frozenset[Option], None]) -> int:
    """How many missing pairs an option would add; first among equals is the first in the list."""
    return sum(frozenset([option, (name, value)]) in missing for option in case.items())
