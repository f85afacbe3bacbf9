"""Agreement of ranks on a value: whether all ranks have the same one, and an error that shows who has which.

The values come from an exchange: MPI's before the engine runs, `tfddl.ops.exchange` after that.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SHOWN = 5


def differ(values: Mapping[int, Any]) -> bool:
    """Whether the ranks have different values; NaN equals NaN.

    Args:
        values: The value of each rank.
    """
    return len(set(map(repr, values.values()))) > 1


def check_equal(values: Mapping[int, Any], message: str) -> None:
    """Raises an error on every rank if the ranks have different values.

    Args:
        values: The value of each rank, the same mapping on all ranks.
        message: What is wrong and how to set it right; the error adds the values.

    Raises:
        ValueError: The values differ.
    """
    if differ(values):
        raise ValueError(f"{message} Received: {by_rank(values)}")


def by_rank(values: Mapping[int, Any]) -> str:
    """The values in words, equal ones together: "ranks 0, 2: x; rank 1: y"."""
    groups: dict[str, tuple[str, list[int]]] = {}
    for rank, value in values.items():
        text = f"{value:.7g}" if isinstance(value, float) else str(value)
        groups.setdefault(repr(value), (text, []))[1].append(rank)
    return "; ".join(f"{in_words(ranks)}: {text}" for text, ranks in groups.values())


def in_words(ranks: Iterable[int]) -> str:
    """The ranks as a noun: "rank 1" or "ranks 0, 2"."""
    numbers = [str(rank) for rank in ranks]
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(numbers)}"


def differences(lists: Mapping[int, Sequence[str]]) -> dict[int, str]:
    """For each rank the lines that some other rank lacks, joined by commas; at most five, and the number of the others.

    Args:
        lists: The lines of each rank.
    """
    counts = {rank: Counter(lines) for rank, lines in lists.items()}
    common = functools.reduce(operator.and_, counts.values())  # the smaller count of each line
    own = {rank: list((lines - common).elements()) for rank, lines in counts.items()}
    return {rank: first_few(lines, _SHOWN) or "none of these" for rank, lines in own.items()}


def digested(text: str, length: int) -> str:
    """A digest of a text, which differs if the texts of two ranks do, and the beginning of the text."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"#{digest}: {text if len(text) <= length else text[:length] + '...'}"


def first_few(names: Sequence[str], count: int = 3) -> str:
    """The first names, joined by commas, and how many more there are."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return f"{', '.join(names[:count])}{more}"
