"""allgather against NumPy's concatenation."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.finite import differences
from tests.ops.support import DTYPES, MODES, array, call, check

ROWS = ((2, 2, 2), (1, 4, 2), (0, 3, 1), (2, 0, 0), (0, 0, 0))
"""First dimensions by rank."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@on_ranks(1, 2, 3)
def test_rows_differ_by_rank(hvd, dtype, mode):
    for rows in ROWS:
        for rest in ((), (3,), (2, 0), (2, 2)):
            parts = [array(rank, dtype, (rows[rank], *rest)) for rank in range(hvd.size())]
            check(call(mode, hvd.allgather, parts[hvd.rank()]), np.concatenate(parts))


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@on_ranks(2, 3)
def test_more_than_any_chunk(hvd, dtype):
    parts = [array(rank, dtype, (1_000_003 * (rank + 1), 2)) for rank in range(hvd.size())]
    check(hvd.allgather(parts[hvd.rank()]), np.concatenate(parts))


@on_ranks(2)
def test_static_shape_leaves_the_rows_open(hvd):
    @tf.function
    def gather(x):
        result = hvd.allgather(x)
        assert result.shape.as_list() == [None, 3]
        return result

    check(gather(tf.ones([2, 3])), np.ones([4, 3], "float32"))


GROUP = (
    ("float32", (3,), 1),
    ("int64", (), 2),
    ("float32", (2, 2), 0),
    ("float32", (1,), 70_001),
    ("int64", (0,), 3),
)
"""By member of a group: dtype, further dimensions, and rows on rank 1; rank r has r times as many rows."""


def members(rank):
    return [array(rank, dtype, (rank * rows, *rest), seed=i) for i, (dtype, rest, rows) in enumerate(GROUP)]


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3)
def test_group(hvd, mode):
    def body(*x):
        return hvd.grouped_allgather([*x[:2], None, *x[2:]])

    results = call(mode, body, *members(hvd.rank()))
    assert results.pop(2) is None
    parts = [members(rank) for rank in range(hvd.size())]
    for result, *expected in zip(results, *parts, strict=True):
        check(result, np.concatenate(expected))
    assert hvd.grouped_allgather([]) == []


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3)
def test_gradient_of_a_group_by_finite_differences(hvd, mode):
    size, rank = hvd.size(), hvd.rank()
    shapes = ((lambda r: (2 - r, 2)), (lambda r: (r + 1,)))
    values = [[array(r, "float64", shape(r), seed=1) for r in range(size)] for shape in shapes]
    weights = [
        [array(r, "float64", np.concatenate(parts).shape, seed=2 + i) for r in range(size)]
        for i, parts in enumerate(values)
    ]

    def body(x, weight):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.grouped_allgather(x)
        return tape.gradient(y, x, output_gradients=weight)

    results = call(mode, body, [parts[rank] for parts in values], [parts[rank] for parts in weights])
    for result, parts, total in zip(results, values, map(sum, weights), strict=True):
        expected = differences(rank, parts, lambda moved, w=total: np.sum(w * np.concatenate(moved)))
        np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-9)


@on_ranks(1, 2, 3)
def test_rows_that_are_equal_and_then_are_not(hvd):
    """The op allocates outputs for equal rows in advance, and others if ranks have different numbers of rows."""
    gather = tf.function(
        lambda x, y: hvd.grouped_allgather([x, y], name="xy"),
        input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([None])],
    )
    for step, uneven in enumerate([False, True, False, True, False]):
        xs = [np.full((4 + uneven * rank, 3), 10 * step + rank, "float32") for rank in range(hvd.size())]
        ys = [np.arange(20_000 - uneven * rank, dtype="float32") + step for rank in range(hvd.size())]
        x, y = gather(tf.constant(xs[hvd.rank()]), tf.constant(ys[hvd.rank()]))
        np.testing.assert_array_equal(x, np.concatenate(xs))
        np.testing.assert_array_equal(y, np.concatenate(ys))
