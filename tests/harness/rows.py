"""Which rows of a parametrized `on_ranks` test run on which sizes."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import pytest

Row = TypeVar("Row")


def covering(rows: Sequence[Row], values: Callable[[Row], set[Hashable]]) -> list[Row]:
    """Chooses rows greedily until each value of any row is in a chosen one, the same way each time.

    Args:
        rows: To choose from.
        values: What a row holds.
    """
    missing = set().union(*map(values, rows))
    chosen = []
    while missing:
        chosen.append(max(rows, key=lambda row: len(values(row) & missing)))
        missing -= values(chosen[-1])
    return chosen


def thinned(items: Sequence[pytest.Item], everywhere: bool = False) -> list[pytest.Item]:
    """Leaves out rows of tests that are thin on a size: those that remain have every value of every parameter.

    Args:
        items: What pytest has collected.
        everywhere: Whether every test is thin on every size.

    Returns:
        The items that stay, in their order.
    """
    rows: dict[tuple[object, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        test, parameters = getattr(item, "function", None), getattr(item, "callspec", None)
        size = parameters.params.get("rank_group") if parameters else None
        if size is not None and (everywhere or size in getattr(test, "thin", ())):
            rows[test, size].append(item)
    left_out = set()
    for several in rows.values():
        left_out |= set(several) - set(covering(several, _values))
    return [item for item in items if item not in left_out]


def _values(item: Any) -> set[Hashable]:
    return {(name, repr(value)) for name, value in item.callspec.params.items()}
