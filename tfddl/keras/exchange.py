"""Asking all ranks the same question before a collective depends on the answer.

A rank that lacks a variable or a metric would leave the others waiting. What every rank is about to do is
therefore compared first, and a difference becomes the same error on every rank.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfddl.ops.allgather import allgather
from tfddl.runtime.process_sets import ProcessSet, global_process_set, members

_END = "\0"
Value = TypeVar("Value")


def all_texts(text: str, name: str, process_set: ProcessSet = global_process_set) -> list[str]:
    """Every rank's text, in the order of ranks.

    Args:
        text: This rank's; must not contain a null character.
        name: Names the collective.
        process_set: Whose ranks take part; "every rank" means those.

    Returns:
        As many texts as there are ranks.
    """
    codes = tf.constant(list((text + _END).encode()), tf.int32)
    return (
        bytes(allgather(codes, name=name, process_set=process_set).numpy().tolist()).decode().split(_END)[:-1]
    )


def all_rows(numbers: Sequence[float], name: str, process_set: ProcessSet = global_process_set) -> np.ndarray:
    """Every rank's numbers.

    Args:
        numbers: This rank's; equally many on all ranks.
        name: Names the collective.
        process_set: See `all_texts`.

    Returns:
        A float64 array, one row for each rank.
    """
    rows = allgather(tf.constant([list(numbers)], tf.float64), name=name, process_set=process_set)
    return np.asarray(rows.numpy())


def differing_lists(
    lines: list[str], name: str, process_set: ProcessSet = global_process_set
) -> dict[int, list[str]] | None:
    """Compares a list of lines over the ranks.

    Args:
        lines: This rank's.
        name: Names the collective.
        process_set: See `all_texts`.

    Returns:
        None if all ranks have the same lines in the same order, which costs one small message; else every
        rank's lines, by its rank in the job.
    """
    text = "\n".join(lines)
    digests = all_texts(hashlib.sha256(text.encode()).hexdigest(), f"{name}.digest", process_set)
    if len(set(digests)) == 1:
        return None
    texts = all_texts(text, f"{name}.lines", process_set)
    return by_rank([other.split("\n") if other else [] for other in texts], process_set)


def by_rank(values: Iterable[Value], process_set: ProcessSet) -> dict[int, Value]:
    """What each member of a set has said, by its rank in the job."""
    return dict(zip(members(process_set), values, strict=True))


def quoted(values: Iterable[Any], process_set: ProcessSet) -> str:
    """The same in words: "rank 0: 3, rank 2: 4"."""
    return ", ".join(f"rank {rank}: {value}" for rank, value in by_rank(values, process_set).items())
