"""Asking all ranks the same question before a collective depends on the answer.

A rank that lacks a variable or a metric would leave the others waiting. What every rank is about to do is
therefore compared first, and a difference becomes the same error on every rank.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfddl.ops.allgather import allgather

_END = "\0"


def all_texts(text: str, name: str) -> list[str]:
    """Every rank's text, in the order of ranks.

    Args:
        text: This rank's; must not contain a null character.
        name: Names the collective.

    Returns:
        As many texts as there are ranks.
    """
    codes = tf.constant(list((text + _END).encode()), tf.int32)
    return bytes(allgather(codes, name=name).numpy().tolist()).decode().split(_END)[:-1]


def all_rows(numbers: Sequence[float], name: str) -> np.ndarray:
    """Every rank's numbers.

    Args:
        numbers: This rank's; equally many on all ranks.
        name: Names the collective.

    Returns:
        A float64 array, one row for each rank.
    """
    return np.asarray(allgather(tf.constant([list(numbers)], tf.float64), name=name).numpy())


def differing_lists(lines: list[str], name: str) -> list[list[str]] | None:
    """Compares a list of lines over the ranks.

    Args:
        lines: This rank's.
        name: Names the collective.

    Returns:
        None if all ranks have the same lines in the same order, which costs one small message; else every
        rank's lines, in the order of ranks.
    """
    text = "\n".join(lines)
    digests = all_texts(hashlib.sha256(text.encode()).hexdigest(), f"{name}.digest")
    if len(set(digests)) == 1:
        return None
    return [other.split("\n") if other else [] for other in all_texts(text, f"{name}.lines")]
