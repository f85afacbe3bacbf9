"""`groups=`: the user's choice of gradients that travel together."""

import itertools
from collections.abc import Sequence
from typing import Any

from tfddl import _compat
from tfddl.runtime.agreement import digested

_READABLE = 200
"""Characters of the groups that an error quotes. A digest covers all groups."""

Groups = int | tuple[tuple[Any, ...], ...] | None
"""A number of groups of consecutive gradients, references to the variables of each group, or None."""


def checked_groups(groups: Any) -> Groups:
    """Returns the argument in a form that can be compared.

    Args:
        groups: None, a number of groups, or a list of lists of variables.

    Raises:
        ValueError: If `groups` is something else, or names a variable twice.
    """
    if groups is None or (isinstance(groups, int) and not isinstance(groups, bool) and groups > 0):
        return groups
    if not isinstance(groups, (list, tuple)) or not all(_holds_variables(group) for group in groups):
        raise ValueError(
            "groups is the number of groups, 1 or more, or a list of lists of variables: pass groups=4, or "
            "groups=[layer.trainable_variables, ...]. "
            f"Received: groups={groups!r}"
        )
    references = tuple(tuple(map(_compat.reference, group)) for group in groups)
    if len({reference for group in references for reference in group}) < sum(map(len, references)):
        raise ValueError(f"groups names a variable twice: name each once. Received: groups={groups!r}")
    return references


def members(groups: Groups, count: int, variables: Sequence[Any] | None) -> list[list[int]]:
    """Returns the slots of the gradients in each group.

    Args:
        groups: From `checked_groups`.
        count: How many gradients there are.
        variables: One for each gradient, if known.

    Returns:
        Slots of gradients, group by group. A variable without a gradient here has none; empty groups are left out.
    """
    if groups is None:
        return []
    if isinstance(groups, int):
        size, larger = divmod(count, groups)
        ends = [number * size + min(number, larger) for number in range(groups + 1)]
        return [list(range(*pair)) for pair in itertools.pairwise(ends) if pair[0] < pair[1]]
    slot = {_compat.reference(variable): index for index, variable in enumerate(variables or ())}
    present = [[slot[reference] for reference in group if reference in slot] for group in groups]
    return [group for group in present if group]


def description(together: Sequence[Sequence[int]]) -> str:
    """Describes the groups, on which ranks have to agree; empty without groups."""
    if not together:
        return ""
    text = ", ".join(str(list(group)) for group in together)
    return f"groups of gradients {digested(text, _READABLE)}"


def _holds_variables(group: Any) -> bool:
    return isinstance(group, (list, tuple)) and all(map(_compat.is_variable, group))
