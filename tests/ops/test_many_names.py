"""5,000 names and shapes in one job, more than the 4,096 that the engine remembers; each rank has its own order."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from tests.harness import on_ranks

COUNT, AT_A_TIME = 5_000, 20


@on_ranks(2, full=(3,))
def test_more_names_and_shapes_than_the_engine_remembers(hvd):
    generator = random.Random(hvd.rank())

    def reduce(i):
        x = np.full(i + 1, hvd.rank() + i % 7, "uint8")
        return hvd.allreduce(x, op=hvd.Sum, name=f"many.{i}")

    # The engine has forgotten the first names by the end, and agrees on them again.
    numbers = [*range(COUNT), *range(100)]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for start in range(0, len(numbers), AT_A_TIME):
            order = numbers[start : start + AT_A_TIME]
            generator.shuffle(order)
            for i, result in zip(order, pool.map(reduce, order), strict=True):
                expected = sum(range(hvd.size())) + hvd.size() * (i % 7)
                assert result.shape == (i + 1,) and np.all(result.numpy() == expected)


@on_ranks(2, 3)
def test_rows_of_allgather_are_no_part_of_what_is_agreed_on(hvd):
    """A name stays agreed on if the number of rows changes: all calls need equally many votes."""
    from tfddl.runtime import stats

    generators = [np.random.default_rng(rank) for rank in range(hvd.size())]

    def votes(rows_of):
        before = stats()["votes"]
        for _ in range(200):
            rows = [rows_of(generator) for generator in generators]
            result = hvd.allgather(tf.fill([rows[hvd.rank()], 2], hvd.rank()), name="rows")
            np.testing.assert_array_equal(result[:, 0], np.repeat(np.arange(hvd.size()), rows))
        return stats()["votes"] - before

    equal = votes(lambda generator: 7)
    different = votes(lambda generator: int(generator.integers(0, 50)))
    assert different < 1.5 * equal, (different, equal)
