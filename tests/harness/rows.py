"""Which rows of a parametrized `on_ranks` test run on which sizes."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import pytest

Row = TypeVar("Row")


class Combination(dict[str, Any]):
    """Several values in one parameter, by name: a thin run has every value, not every combination."""


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


def selected(items: Sequence[pytest.Item], extent: str) -> list[pytest.Item]:
    """Chooses the tests of a run.

    Args:
        items: What pytest has collected.
        extent: `full`, `thin` or `rest`, the tests of `full` that `thin` leaves out.

            ================= ============================== ======================
            tests             `full`                         `thin`
            ================= ============================== ======================
            on a usual size   every combination of values    every value at least once
            on a thin size    every value at least once      one combination
            marked `slow`     run                            left out
            without ranks     run                            run
            ================= ============================== ======================

    Returns:
        The items that run, in their order.
    """
    full = _reduced(items, thin=False)
    if extent == "full":
        return full
    thin = {item for item in _reduced(full, thin=True) if item.get_closest_marker("slow") is None}
    return [item for item in full if (item in thin) == (extent == "thin")]


def _reduced(items: Sequence[pytest.Item], thin: bool) -> list[pytest.Item]:
    """Leaves out combinations of values of the ranked tests."""
    tests: dict[Any, dict[int, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        parameters = getattr(item, "callspec", None)
        size = parameters.params.get("rank_group") if parameters else None
        if size is not None:
            tests[item.function][size].append(item)  # type: ignore[attr-defined]
    left_out = set()
    for test, sizes in tests.items():
        thin_sizes = set(getattr(test, "thin", ()))
        for size, rows in sizes.items():
            if thin and size in thin_sizes and not thin_sizes.issuperset(sizes):
                chosen = covering(rows, _values)
                left_out |= set(rows) - {chosen[size % len(chosen)]}
            elif thin or size in thin_sizes:
                left_out |= set(rows) - set(covering(rows, _values))
    return [item for item in items if item not in left_out]


def _values(item: Any) -> set[Hashable]:
    found: set[Hashable] = set()
    for name, value in item.callspec.params.items():
        parts = value if isinstance(value, Combination) else {None: value}
        found |= {(name, key, repr(part)) for key, part in parts.items()}
    return found
