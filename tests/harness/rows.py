"""Which rows of a parametrized `on_ranks` test run on which sizes."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import pytest

Row = TypeVar("Row")


class Combination(dict[str, Any]):
    """Several values in one parameter, by name: a thin run has every value, not every combination."""


def slow(*values: Any) -> Any:
    """The values of one row of `parametrize` that is slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def long(*values: Any) -> Any:
    """The values of one row of `parametrize` that is long."""
    return pytest.param(*values, marks=pytest.mark.long)


def covering(rows: Sequence[Row], values: Callable[[Row], set[Hashable]]) -> list[Row]:
    """Chooses rows greedily until each value of any row is in a chosen one, the same way each time.

    Args:
        rows: To choose from.
        values: What a row holds.
    """
    missing: set[Hashable] = set().union(*map(values, rows))
    chosen = []
    while missing:
        chosen.append(max(rows, key=lambda row: len(values(row) & missing)))
        missing -= values(chosen[-1])
    return chosen


def selected(items: Sequence[pytest.Item], extent: str) -> list[pytest.Item]:
    """Chooses the tests of a run.

    Args:
        items: What pytest has collected.
        extent: `thin`, `rest` or `full`.

            ====================== ============================= =============== ===========================
            tests                  `thin`                        `rest`          `full`
            ====================== ============================= =============== ===========================
            on ranks               every value of each parameter none            every combination of values
            on a size of `full`    none                          one combination one combination
            marked `slow`          none                          all             all
            marked `long`          none                          none            all
            others                 all                           none            all
            ====================== ============================= =============== ===========================

    Returns:
        The items that run, in their order.
    """
    rows: dict[tuple[object, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        parameters = getattr(item, "callspec", None)
        size = parameters.params.get("rank_group") if parameters else None
        if size is not None:
            rows[item.function, size].append(item)  # type: ignore[attr-defined]
    only_full = {item for item in items if item.get_closest_marker("long")}
    not_full, not_thin = set(), only_full | {item for item in items if item.get_closest_marker("slow")}
    for (test, size), several in rows.items():
        if size in getattr(test, "full", ()):
            covered = covering(several, _values)
            not_full |= set(several) - {covered[size % len(covered)]}
            not_thin.update(several)
        else:
            quick = [item for item in several if item not in not_thin]
            combinations = set(quick) - set(covering(quick, _values))
            not_thin |= combinations
            only_full |= combinations
    chosen = {
        "thin": set(items) - not_thin,
        "rest": not_thin - only_full - not_full,
        "full": set(items) - not_full,
    }[extent]
    return [item for item in items if item in chosen]


def _values(item: Any) -> set[Hashable]:
    found: set[Hashable] = set()
    for name, value in item.callspec.params.items():
        parts = value if isinstance(value, Combination) else {None: value}
        found |= {(name, key, repr(part)) for key, part in parts.items()}
    return found
