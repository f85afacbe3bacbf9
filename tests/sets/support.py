"""Process sets for the time of a test."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import numpy as np
import tensorflow as tf

from tests.ops.support import arrays, check


@contextmanager
def added(hvd: Any, *groups: Sequence[int]) -> Iterator[list[Any]]:
    """Adds sets of these ranks, and removes them when the test has passed."""
    sets = [hvd.add_process_set(ranks) for ranks in groups]
    yield sets
    for process_set in sets:
        assert hvd.remove_process_set(process_set)


def sum_of_ones(hvd: Any, process_set: Any, name: str | None = None) -> None:
    """Runs a collective of the set by this name, and checks the result."""
    result = hvd.allreduce(tf.ones([3]), op=hvd.Sum, name=name, process_set=process_set)
    check(result, np.full(3, process_set.size(), "float32"))


def subsets(size: int) -> list[list[int]]:
    """The proper subsets of the ranks; of 4 ranks a selection."""
    if size == 4:
        return [[2], [0, 1], [1, 3], [0, 2, 3]]
    return [list(ranks) for count in range(1, size) for ranks in combinations(range(size), count)]


def parts(
    process_set: Any, size: int, dtype: str = "float32", shape: Sequence[int] = (5,)
) -> list[np.ndarray]:
    """The inputs of the members, in the order of their ranks."""
    whole = arrays(size, dtype, shape)
    return [whole[rank] for rank in process_set.ranks]
