"""alltoall against NumPy: values, splits, gradients and errors."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.finite import differences
from tests.ops.support import MODES, array, arrays, call, check, numpy_type
from tfddl.ops.dtypes import DTYPES

SPLITS = (
    np.array([[2, 2, 2], [2, 2, 2], [2, 2, 2]]),
    np.array([[1, 2, 3], [0, 2, 1], [4, 0, 0]]),
    np.array([[0, 0, 0], [0, 0, 2], [1, 0, 0]]),
    np.zeros((3, 3), int),
)
"""Rows from each rank (down) to each rank (right)."""


def exchange(parts, splits, rank):
    """The rows that `rank` gets."""
    ends = splits.cumsum(axis=1)
    return np.concatenate(
        [part[end[rank] - n[rank] : end[rank]] for part, n, end in zip(parts, splits, ends, strict=True)]
    )


def some(rank, dtype, shape):
    return (array(rank, "int64", shape) % 5).astype(numpy_type(dtype))


def same(result, expected):
    assert result.dtype.name == expected.dtype.name
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@on_ranks(1, 2, 3)
def test_splits(hvd, dtype, mode):
    size, rank = hvd.size(), hvd.rank()
    for whole in SPLITS:
        splits = whole[:size, :size]
        for rest, extra in (((), 0), ((3,), 2), ((2, 0), 1), ((2, 2), 0)):
            parts = [some(other, dtype, (splits[other].sum() + extra, *rest)) for other in range(size)]
            for kind in ("int32", "int64"):
                y, received = call(mode, hvd.alltoall, parts[rank], splits[rank].astype(kind))
                same(y, exchange(parts, splits, rank))
                check(received, splits[:, rank].astype(kind))


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3)
def test_without_splits_all_get_equally_many(hvd, mode):
    size, rank = hvd.size(), hvd.rank()
    parts = [array(other, "float32", (size * other, 2)) for other in range(size)]  # rank 0 has none
    splits = np.repeat(np.arange(size)[:, np.newaxis], size, axis=1)
    check(call(mode, hvd.alltoall, parts[rank]), exchange(parts, splits, rank))


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@on_ranks(2, 3)
def test_more_than_any_piece(hvd, dtype):
    size, rank = hvd.size(), hvd.rank()
    splits = np.array([[300_001, 500_003, 7], [0, 400_009, 600_011], [9, 1, 100_003]])[:size, :size]
    parts = [array(other, dtype, (splits[other].sum(), 2)) for other in range(size)]
    y, _ = hvd.alltoall(parts[rank], splits[rank])
    check(y, exchange(parts, splits, rank))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("given", [True, False])
@on_ranks(1, 2, 3)
def test_gradient_by_finite_differences(hvd, given, mode):
    size, rank = hvd.size(), hvd.rank()
    splits = SPLITS[1][:size, :size] if given else np.full((size, size), 2)
    extra = 2 if given else 0  # rows that go to no rank
    values = [array(other, "float64", (splits[other].sum() + extra, 2)) for other in range(size)]
    weights = [array(other, "float64", (splits[:, other].sum(), 2), seed=1) for other in range(size)]

    def body(x, weight):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.alltoall(x, splits[rank])[0] if given else hvd.alltoall(x)
        return tape.gradient(y, x, output_gradients=weight)

    def loss(values):
        return sum(np.sum(weights[other] * exchange(values, splits, other)) for other in range(size))

    result = call(mode, body, values[rank], weights[rank])
    np.testing.assert_allclose(result, differences(rank, values, loss), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3)
def test_second_order(hvd, mode):
    """The receiver's loss of each x is x^3; its derivatives are 3 x^2 and 6 x."""

    def body(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(hvd.alltoall(x) ** 3)
            first = inner.gradient(loss, x)
        return first, outer.gradient(first, x)

    x = arrays(hvd.size(), "float64", (6, 2))[hvd.rank()]
    first, second = call(mode, body, x)
    np.testing.assert_allclose(first, 3 * x**2)
    np.testing.assert_allclose(second, 6 * x)


@on_ranks(2)
def test_static_shapes(hvd):
    @tf.function
    def exchange(x):
        y, received = hvd.alltoall(x, [1, 1])
        assert y.shape.as_list() == [None, 3] and received.shape.rank == 1
        return y

    check(exchange(tf.ones([4, 3])), np.ones([2, 3], "float32"))
