"""Names of reductions: fixed when the graph is built, whatever one rank does alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks


def variable(count=1):
    return tf.Variable(tf.zeros([count]))


@pytest.mark.parametrize("eager", [False, True])
@on_ranks(2)
def test_two_optimizers_in_one_step(hvd, eager):
    """As a GAN has; the two networks have gradients of different shapes."""
    optimizers = [hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)) for _ in range(2)]
    variables = [variable(2), variable(3)]
    for optimizer, v in zip(optimizers, variables, strict=True):
        optimizer.build([v])
    own = float(hvd.rank() + 1)

    def step():
        for optimizer, v in zip(optimizers, variables, strict=True):
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(v) * own
            optimizer.apply_gradients([(tape.gradient(y, v), v)])

    run = step if eager else tf.function(step)
    for _ in range(3):
        run()
    for v in variables:
        np.testing.assert_allclose(v, np.full(v.shape, -4.5))


@on_ranks(2, full=(3,))
def test_retracing_on_one_rank_only(hvd):
    optimizers = [hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), name="mine") for _ in range(2)]
    v, w = variable(2), variable()
    optimizers[0].build([v])
    optimizers[1].build([w])
    traces = []

    @tf.function
    def step(turn):
        traces.append(turn)
        optimizers[0].apply_gradients([(tf.fill([2], float(hvd.rank())), v)])
        optimizers[1].apply_gradients([(tf.fill([1], 1.0), w)])

    for turn in range(4):
        step(turn if hvd.rank() == 1 else 0)
    assert len(traces) == (4 if hvd.rank() == 1 else 1)
    np.testing.assert_allclose(v, np.full(2, -4 * (hvd.size() - 1) / 2))
    np.testing.assert_allclose(w, [-4.0])


@on_ranks(2)
def test_one_optimizer_twice_in_one_function(hvd):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    v = variable(2)
    optimizer.build([v])

    @tf.function
    def step():
        for factor in (1.0, 10.0):
            optimizer.apply_gradients([(tf.fill([2], factor * hvd.rank()), v)])

    step()
    np.testing.assert_allclose(v, [-5.5, -5.5])


@on_ranks(2)
def test_in_a_loop_in_the_graph(hvd):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    v = variable()
    optimizer.build([v])

    @tf.function
    def steps(count):
        for _ in tf.range(count):
            optimizer.apply_gradients([(tf.fill([1], float(hvd.rank())), v)])

    steps(3)
    np.testing.assert_allclose(v, [-1.5])


@on_ranks(2)
def test_one_function_with_two_shapes(hvd):
    """Traced twice on all ranks; calls alternate."""

    @tf.function
    def step(x):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            tape.watch(x)
            y = tf.reduce_sum(x * x) * (hvd.rank() + 1)
        return tape.gradient(y, x)

    for _ in range(3):
        for count in (2, 5):
            np.testing.assert_allclose(step(tf.ones([count])), np.full(count, 3.0))
