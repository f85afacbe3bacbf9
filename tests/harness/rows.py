"""Which rows of a parametrized `on_ranks` test run on which sizes."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import pytest

Row = TypeVar("Row")


class Combination(dict[str, Any]):
    """Several values in one parameter, by name: a thin run has every value, not every combination."""


def slow(*values: Any) -> Any:
    """The values of one row of `parametrize`, which only a full run has."""
    return pytest.param(*values, marks=pytest.mark.slow)


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
        extent: `full`, `thin` or `rest`, the tests of `full` that `thin` leaves out.

            ====================== ============================== ============================
            tests                  `full`                         `thin`
            ====================== ============================== ============================
            on ranks               every combination of values    every value of each parameter
            on a size of `full`    one combination                none
            marked `slow`          all                            none
            others                 all                            all
            ====================== ============================== ============================

    Returns:
        The items that run, in their order.
    """
    rows: dict[tuple[object, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        parameters = getattr(item, "callspec", None)
        size = parameters.params.get("rank_group") if parameters else None
        if size is not None:
            rows[item.function, size].append(item)  # type: ignore[attr-defined]
    not_full, not_thin = set(), {item for item in items if item.get_closest_marker("slow")}
    for (test, size), several in rows.items():
        if size in getattr(test, "full", ()):
            chosen = covering(several, _values)
            not_full |= set(several) - {chosen[size % len(chosen)]}
            not_thin.update(several)
        else:
            quick = [item for item in several if item not in not_thin]
            not_thin |= set(quick) - set(covering(quick, _values))
    full = [item for item in items if item not in not_full]
    return [item for item in full if extent == "full" or (item in not_thin) == (extent == "rest")]


def _values(item: Any) -> set[Hashable]:
    found: set[Hashable] = set()
    for name, value in item.callspec.params.items():
        parts = value if isinstance(value, Combination) else {None: value}
        found |= {(name, key, repr(part)) for key, part in parts.items()}
    return found
