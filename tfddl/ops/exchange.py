"""Exchange of small values between all ranks, outside of graphs, for checks ahead of a collective.

A rank that lacks a variable or a metric would leave the others waiting. So the ranks first compare their plans, and a
difference becomes the same error on every rank.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl.ops.allgather import allgather
from tfddl.ops.objects import allgather_object
from tfddl.runtime import agreement, basics
from tfddl.runtime.process_sets import ProcessSet, global_process_set


def all_numbers(
    *numbers: float, name: str, process_set: ProcessSet = global_process_set
) -> list[dict[int, float]]:
    """Gives every rank the numbers of all ranks, by one collective.

    Args:
        numbers: This rank's numbers, as many as on every other rank; they travel as float64.
        name: Names the collective.
        process_set: The ranks that take part.

    Returns:
        For each number its value on each rank, by rank in the job.
    """
    mine = tf.constant([[basics.rank(), *numbers]], tf.float64)
    ranks, *columns = allgather(mine, name=name, process_set=process_set).numpy().T
    return [dict(zip(ranks.astype(int).tolist(), column.tolist(), strict=True)) for column in columns]


def differing(
    lines: Sequence[str], value: Any, name: str, process_set: ProcessSet = global_process_set
) -> dict[int, Any] | None:
    """Compares a list of lines over the ranks, and exchanges values if the lines differ.

    Args:
        lines: This rank's lines.
        value: This rank's value, which cloudpickle must take.
        name: Names the collectives.
        process_set: The ranks that take part.

    Returns:
        None if all ranks have the same lines in the same order, which costs one collective of 32 bytes a rank; else the
        value of each rank, by rank in the job.
    """
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    mine = tf.constant([list(digest)], tf.uint8)
    digests = allgather(mine, name=f"{name}.digest", process_set=process_set).numpy()
    if (digests == digests[0]).all():
        return None
    return dict(allgather_object((basics.rank(), value), name=f"{name}.lines", process_set=process_set))


def differing_lists(
    lines: Sequence[str], name: str, process_set: ProcessSet = global_process_set
) -> dict[int, list[str]] | None:
    """The lines of each rank if they differ; see `differing`."""
    return differing(lines, list(lines), name, process_set)


def check_same(
    lines: Sequence[str], message: str, name: str, process_set: ProcessSet = global_process_set
) -> None:
    """Checks that all ranks have the same lines in the same order.

    Args:
        lines: This rank's lines, no two of them equal; where order matters, begin each line with its number.
        message: What is wrong and how to set it right; the error adds the lines that differ.
        name: Names the collectives.
        process_set: The ranks that take part.

    Raises:
        ValueError: On every rank, if the lines differ.
    """
    different = differing_lists(lines, name, process_set)
    if different is not None:
        raise ValueError(f"{message} Received: {agreement.by_rank(agreement.differences(different))}")
