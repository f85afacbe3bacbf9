"""allreduce of tf.IndexedSlices against the dense tensors that they stand for."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.support import MODES, check_close, numpy_type

ROWS, COLUMNS = 6, 2
INDICES = ([4, 1, 1, 4, 4], [], [0, 1])
"""Indices by rank: one index twice, none, and indices of other ranks."""


def values(rank, dtype):
    generator = np.random.default_rng([5, rank])
    return generator.integers(-8, 9, (len(INDICES[rank]), COLUMNS)).astype(numpy_type(dtype))


def dense(rank, dtype):
    result = np.zeros((ROWS, COLUMNS))
    np.add.at(result, np.array(INDICES[rank], "int64"), values(rank, dtype).astype("float64"))
    return result


def reduced(function, mode, rank, dtype="float32", index_dtype="int64"):
    """The result of `function` for this rank's slices."""

    def body(rows, indices):
        return function(tf.IndexedSlices(rows, indices, tf.constant([ROWS, COLUMNS])))

    run = tf.function(body) if mode == "graph" else body
    return run(tf.constant(values(rank, dtype)), tf.constant(INDICES[rank], index_dtype))


def check_slices(result, expected):
    assert isinstance(result, tf.IndexedSlices)
    indices = result.indices.numpy().tolist()
    assert len(set(indices)) == len(indices)
    assert set(np.flatnonzero(expected.any(axis=1))) <= set(indices)
    np.testing.assert_array_equal(result.dense_shape, expected.shape)
    check_close(tf.convert_to_tensor(result), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
@pytest.mark.parametrize("op", ["Average", "Sum"])
@on_ranks(1, 2, 3)
def test_against_dense(hvd, op, dtype, mode):
    total = sum(dense(rank, dtype) for rank in range(hvd.size()))
    expected = total / hvd.size() if op == "Average" else total
    expected = (np.trunc(expected) if dtype == "int32" else expected).astype(numpy_type(dtype))
    result = reduced(lambda x: hvd.allreduce(x, op=getattr(hvd, op)), mode, hvd.rank(), dtype)
    check_slices(result, expected)


@pytest.mark.parametrize(
    ("number", "dtype", "factors"),
    [
        (100, "int8", (1.0, 3.0)),
        (100, "int8", (-3.0, 1.0)),
        (200, "uint8", (-1.0, 1.0)),
        (2**62, "int64", (4.0, 1.0)),
        (2**62, "int64", (1.0, -4.0)),
        (2**63, "uint64", (4.0, 1.0)),
        (60000, "float16", (2.0, 0.5)),
    ],
)
@on_ranks(2)
def test_factors_at_the_limits_of_a_dtype(hvd, number, dtype, factors):
    x = tf.constant(np.array([[number]], dtype))
    options = {"prescale_factor": factors[0], "postscale_factor": factors[1]}
    result = hvd.allreduce(tf.IndexedSlices(x, tf.constant([0]), tf.constant([1, 1])), **options)
    np.testing.assert_array_equal(result.values, hvd.allreduce(x, **options))


@on_ranks(1, 2, 3)
def test_factors_and_compression(hvd):
    def scaled(x):
        return hvd.allreduce(x, prescale_factor=0.5, postscale_factor=3.0, compression=hvd.Compression.fp16)

    expected = 1.5 * sum(dense(rank, "float32") for rank in range(hvd.size())) / hvd.size()
    check_slices(reduced(scaled, "eager", hvd.rank()), expected.astype("float32"))


@on_ranks(2)
def test_compression_applies_to_the_values(hvd):
    x = tf.IndexedSlices(tf.constant([[1.0 + 2.0**-20]]), tf.constant([0]), tf.constant([1, 1]))
    result = hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16)
    np.testing.assert_array_equal(result.values, [[2.0]])


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3)
def test_among_dense_members_of_a_group(hvd, mode):
    def group(x):
        return hvd.grouped_allreduce([tf.ones([3]), x, None, x, tf.ones([2], tf.int32)], op=hvd.Sum)

    results = reduced(group, mode, hvd.rank(), index_dtype="int32")
    expected = sum(dense(rank, "float32") for rank in range(hvd.size())).astype("float32")
    check_close(results[0], np.full(3, hvd.size(), "float32"))
    check_slices(results[1], expected)
    assert results[2] is None
    check_slices(results[3], expected)
    check_close(results[4], np.full(2, hvd.size(), "int32"))


@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
@on_ranks(1)
def test_other_operations_are_refused(hvd, op):
    with pytest.raises(ValueError, match=rf"IndexedSlices supports op=Average and op=Sum.*Received: op={op}"):
        reduced(lambda x: hvd.allreduce(x, op=getattr(hvd, op)), "eager", hvd.rank())


@on_ranks(1)
def test_rows_without_an_index_are_refused(hvd):
    for values, indices in (([1, 2], [2]), ([2, 2], [1]), ([2], [2, 1]), ([], [1])):
        x = tf.IndexedSlices(tf.ones(values), tf.zeros(indices, tf.int32), tf.constant([4, 2]))
        for call in (hvd.allreduce, lambda x: hvd.grouped_allreduce([x])):
            with pytest.raises(
                ValueError, match=r"one index for each row .*Received: values of shape \(.*\) and"
            ):
                call(x)


@on_ranks(1)
def test_only_allreduce_takes_slices(hvd):
    for call in (hvd.allgather, lambda x: hvd.broadcast(x, 0)):
        with pytest.raises(TypeError, match=r"takes dense tensors\. Received: tf\.IndexedSlices"):
            reduced(call, "eager", hvd.rank())


@on_ranks(2)
def test_columns_that_differ_are_an_error_on_all_ranks(hvd):
    x = tf.IndexedSlices(tf.ones([1, 2 + hvd.rank()]), tf.constant([0]), tf.constant([4, 2]))
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"rank 0: float32 \[\?, 2\]"):
        hvd.allreduce(x)


@on_ranks(2, 3)
def test_the_average_of_small_integers_whose_sum_does_not_fit(hvd):
    x = tf.IndexedSlices(tf.constant([[100], [27]], tf.int8), tf.constant([0, 0]), tf.constant([1, 1]))
    np.testing.assert_array_equal(hvd.allreduce(x).values, [[127]])
