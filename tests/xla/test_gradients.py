"""Gradients of the ops inside functions compiled by XLA, against those outside."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.xla.support import jit

CASES = {
    "sum": lambda hvd, x: hvd.allreduce(x, op=hvd.Sum),
    "average": lambda hvd, x: hvd.allreduce(x, postscale_factor=2.0),
    "max": lambda hvd, x: hvd.allreduce(x, op=hvd.Max),
    "product": lambda hvd, x: hvd.allreduce(x, op=hvd.Product),
    "group": lambda hvd, x: tf.concat(hvd.grouped_allreduce([x, x[:1] ** 2]), 0),
    "broadcast": lambda hvd, x: hvd.broadcast(x, hvd.size() - 1),
    "allgather": lambda hvd, x: hvd.allgather(x),
    "reducescatter": lambda hvd, x: hvd.reducescatter(x[:-1]),  # the number of rows differs by rank
    "alltoall": lambda hvd, x: hvd.alltoall(x),
}


@pytest.mark.parametrize("case", CASES)
@on_ranks(2, full=(1, 3))
def test_gradient(hvd, case):
    rows = 2 * hvd.size()
    x = tf.reshape(tf.range(2.0 * rows), [rows, 2]) * (hvd.rank() + 1) + 1

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = CASES[case](hvd, x)
            weights = tf.reshape(tf.range(tf.size(y, tf.int64)), tf.shape(y))
            weights = tf.cast(weights, tf.float32)
            loss = tf.reduce_sum(y * weights * (hvd.rank() + 1.0))
        return tape.gradient(loss, x)

    np.testing.assert_allclose(jit(run)(x), tf.function(run)(x), rtol=1e-6)


@on_ranks(2, full=(1, 3))
def test_gradient_for_a_tape_of_a_calling_function(hvd):
    """TensorFlow builds it when the trace of the compiled function has ended."""
    rows = 2 * hvd.size()
    x = tf.reshape(tf.range(2.0 * rows), [rows, 2]) * (hvd.rank() + 1) + 1

    def gradient(function):
        @tf.function
        def run(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(function(x) ** 2) * (hvd.rank() + 1.0)
            return tape.gradient(loss, x)

        return run(x)

    for case in CASES.values():
        body = functools.partial(case, hvd)
        np.testing.assert_allclose(gradient(jit(body)), gradient(body), rtol=1e-6)


@on_ranks(2, full=(1, 3))
def test_gradients_of_alltoall(hvd):
    """Tapes outside of the compiled function differentiate it, and tapes in it a cond, whose results need a shape."""
    x = tf.fill([hvd.size()], hvd.rank() + 2.0)

    def branch(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(hvd.alltoall(x * x)), lambda: x)

    def with_splits(x):
        return hvd.alltoall(x * x, tf.fill([hvd.size()], 1))[0] ** 2

    for body in (lambda x: hvd.alltoall(x * x), with_splits, branch):
        gradients = []
        for function in (body, jit(body)):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            gradients.append(tape.gradient(y, x))
        np.testing.assert_allclose(*gradients, rtol=1e-5)

    @jit
    def inside(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = branch(x)
        return tape.gradient(y, x)

    np.testing.assert_allclose(inside(x), gradients[0], rtol=1e-5)


@on_ranks(2, full=(1, 3))
def test_tape(hvd):
    """Several buckets, one of them of another dtype; the average of the ranks' gradients."""
    variables = [tf.Variable(tf.ones([300, 300])) for _ in range(8)] + [tf.Variable(tf.ones([3], tf.float64))]

    @jit
    def step(x):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = x * sum(tf.reduce_sum(tf.cast(v, tf.float32) ** 2) for v in variables)
        return tape.gradient(loss, variables)

    gradients = step(tf.constant(hvd.rank() + 1.0))
    for variable, gradient in zip(variables, gradients, strict=True):
        np.testing.assert_allclose(gradient, np.full(variable.shape, float(hvd.size() + 1)))


@on_ranks(2, full=(1, 3))
def test_sparse_gradients_become_dense(hvd):
    table = tf.Variable(tf.ones([4, 2]))

    @jit
    def step(ids):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(tf.gather(table, ids))
        return tape.gradient(loss, [table])[0]

    gradient = step(tf.constant([0, hvd.rank() % 4, 0]))
    assert isinstance(gradient, tf.Tensor)
    expected = sum(np.eye(4)[[0, r % 4, 0]].sum(0) for r in range(hvd.size())) / hvd.size()
    np.testing.assert_allclose(gradient, np.stack([expected, expected], 1), rtol=1e-6)

    with pytest.raises(
        ValueError, match=r"allreduce of tf.IndexedSlices cannot run inside a function compiled by XLA"
    ):
        jit(lambda x: hvd.allreduce(tf.IndexedSlices(x, [0], [2, 1])).values)(tf.ones([1, 1]))
