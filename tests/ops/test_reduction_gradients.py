"""Gradients of Min, Max and Product, by finite differences over the inputs of all ranks."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.finite import differences
from tests.ops.support import MODES, call

VALUES = np.array([[0.5, 2.0, -1.0, 0.0, 3.0], [1.5, -2.0, 4.0, 2.0, 0.25], [-0.5, 1.0, 2.0, 5.0, -1.0]])
WEIGHTS = np.array([[1.0, -2.0, 0.5, 3.0, 1.0], [2.0, 1.0, -1.0, 1.0, 0.5], [0.25, 1.0, 2.0, -1.0, 4.0]])
REDUCE = {"Min": np.min, "Max": np.max, "Product": np.prod}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
@on_ranks(1, 2, 3)
def test_finite_differences(hvd, op, mode):
    size, rank = hvd.size(), hvd.rank()
    values, weights = VALUES[:size], WEIGHTS[:size]

    def body(x, weight, prescale, postscale):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x, op=getattr(hvd, op), prescale_factor=prescale, postscale_factor=postscale)
        return tape.gradient(y, x, output_gradients=weight)

    for factors in [(1.0, 1.0), (-0.2, 3.1)]:  # in one test: a thin run has each operation with both

        def loss(values, factors=factors):
            return np.sum(weights * factors[1] * REDUCE[op](factors[0] * np.stack(values), axis=0))

        expected = differences(rank, list(values), loss)
        gradient = call(
            mode,
            functools.partial(body, prescale=factors[0], postscale=factors[1]),
            values[rank],
            weights[rank],
        )
        np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-9)


@on_ranks(1, 2, 3)
def test_ranks_with_the_same_value_share(hvd):
    x = tf.constant([1.0, float(hvd.rank()), 7.0 if hvd.rank() < 2 else 6.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allreduce(x, op=hvd.Max)
    # Every rank's loss is the sum of y: the cotangent of y is the number of ranks.
    size, rank = hvd.size(), hvd.rank()
    expected = [1.0, float(size) if rank == size - 1 else 0.0, size / min(size, 2) if rank < 2 else 0.0]
    np.testing.assert_allclose(tape.gradient(y, x), expected)


@on_ranks(2, 3)
def test_a_product_with_zeros(hvd):
    rank, size = hvd.rank(), hvd.size()
    x = tf.constant([0.0 if rank == 0 else 3.0, 0.0 if rank < 2 else 3.0], tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allreduce(x, op=hvd.Product)
    expected = [
        size * 3.0 ** (size - 1) if rank == 0 else 0.0,
        0.0,
    ]  # two zeros: the product of the others is zero
    np.testing.assert_allclose(tape.gradient(y, x), expected)


@on_ranks(2, 3)
def test_a_nan_goes_back_to_where_it_came_from(hvd):
    x = tf.constant([np.nan if hvd.rank() == 1 else 1.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allreduce(x, op=hvd.Min)
    np.testing.assert_allclose(tape.gradient(y, x), [hvd.size() if hvd.rank() == 1 else 0.0])


@pytest.mark.parametrize("op", ["Sum", "Average", "Product"])
@on_ranks(1, 2, 3)
def test_complex_numbers_follow_tensorflow(hvd, op):
    """The reference is TensorFlow's gradient of the same function of all inputs in one process."""
    size, rank = hvd.size(), hvd.rank()
    values = tf.constant(VALUES[:size] + 1j * WEIGHTS[:size])
    reduce = {"Sum": tf.reduce_sum, "Average": tf.reduce_mean, "Product": tf.reduce_prod}[op]

    def loss(y, weight):
        return tf.reduce_sum(tf.math.real(y * y) * weight + tf.math.imag(y))

    with tf.GradientTape() as tape:
        tape.watch(values)
        y = reduce(values, axis=0)
        whole = tf.add_n([loss(y, weight) for weight in WEIGHTS[:size]])
    expected = tape.gradient(whole, values)[rank]
    x = values[rank]
    with tf.GradientTape() as tape:
        tape.watch(x)
        own = loss(hvd.allreduce(x, op=getattr(hvd, op)), WEIGHTS[rank])
    np.testing.assert_allclose(tape.gradient(own, x), expected, rtol=1e-9)


@on_ranks(2)
def test_second_order_of_a_product(hvd):
    """y = a b with the losses y and 2 y: the whole is 3 a b, whose gradient at a is 3 b. The loss of that, summed over
    the ranks, 3 b + 3 a, has the gradient 3 at both."""
    x = tf.constant(float(hvd.rank() + 2))
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = hvd.allreduce(x, op=hvd.Product) * float(hvd.rank() + 1)
        first = inner.gradient(y, x)
    np.testing.assert_allclose(first, 3.0 * (3 - hvd.rank()))
    np.testing.assert_allclose(outer.gradient(first, x), 3.0)
