"""DistributedGradientTape against the mean of what every rank's own tape would say."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tfddl.runtime.log import warn_once

MODES = ("eager", "graph")


def run(mode, function, *arguments):
    return (tf.function(function) if mode == "graph" else function)(*arguments)


def factor(hvd):
    """This rank's own number, and the mean of all."""
    return float(hvd.rank() + 1), (hvd.size() + 1) / 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", ["Average", "Sum"])
@on_ranks(2, full=(1, 3))
def test_gradient(hvd, mode, op):
    own, mean = factor(hvd)
    total = mean * (hvd.size() if op == "Sum" else 1)
    v = tf.Variable([1.0, 2.0])

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape(), op=getattr(hvd, op)) as tape:
            y = tf.reduce_sum(v * v) * own
        return tape.gradient(y, v)

    np.testing.assert_allclose(run(mode, step), [2 * total, 4 * total])


@pytest.mark.parametrize("mode", MODES)
@on_ranks(2)
def test_with_on_the_wrapped_tape_and_nested_sources(hvd, mode):
    own, mean = factor(hvd)
    v, w, unused = tf.Variable(3.0), tf.Variable([1.0, 1.0]), tf.Variable(1.0)

    def step():
        with tf.GradientTape() as tape:
            y = v * own + tf.reduce_sum(w) * own * 2
        return hvd.DistributedGradientTape(tape).gradient(y, {"a": v, "b": [w, (unused,)]})

    gradients = run(mode, step)
    np.testing.assert_allclose(gradients["a"], mean)
    np.testing.assert_allclose(gradients["b"][0], [2 * mean] * 2)
    assert gradients["b"][1] == (None,)


@pytest.mark.parametrize("mode", MODES)
@on_ranks(2)
def test_unconnected_zero_and_output_gradients(hvd, mode):
    own, mean = factor(hvd)
    v, unused = tf.Variable([1.0, 2.0]), tf.Variable([5.0])

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            y = v * own
        weights = tf.constant([1.0, 10.0])
        return tape.gradient(y, [v, unused], weights, tf.UnconnectedGradients.ZERO)

    gradient, zero = run(mode, step)
    np.testing.assert_allclose(gradient, [mean, 10 * mean])
    np.testing.assert_allclose(zero, [0.0])


@on_ranks(2)
def test_persistent_watch_stop_reset(hvd):
    own, mean = factor(hvd)
    x = tf.constant(2.0)
    tape = hvd.DistributedGradientTape(tf.GradientTape(persistent=True, watch_accessed_variables=False))
    assert isinstance(tape, tf.GradientTape)
    v = tf.Variable(1.0)
    with tape as same:
        assert same is tape
        tape.watch(x)
        y, z = x * x * own, x * v * own
        with tape.stop_recording():
            hidden = x * x
    np.testing.assert_allclose(tape.gradient(y, x), 4 * mean)
    np.testing.assert_allclose(tape.gradient(z, x), mean)
    assert tape.gradient(z, v) is None and tape.gradient(hidden, x) is None
    assert tape.watched_variables() == ()
    with tape:
        tape.watch(x)
        y = x * x
        tape.reset()
    assert tape.gradient(y, x) is None


@pytest.mark.parametrize("mode", MODES)
@on_ranks(2)
def test_second_order(hvd, mode):
    """The derivative of a reduced gradient: all ranks' first order terms are in every rank's second order."""
    own, mean = factor(hvd)
    v = tf.Variable(2.0)

    def step():
        with tf.GradientTape() as outer:
            with hvd.DistributedGradientTape(tf.GradientTape()) as inner:
                y = v * v * v * own
            first = inner.gradient(y, v)
            penalty = first * first
        return first, hvd.DistributedGradientTape(outer).gradient(penalty, v)

    first, second = run(mode, step)
    np.testing.assert_allclose(first, 12 * mean)
    # d/dv_r of sum over ranks q of first^2 is 2 * first * 6 v f_r; its mean over r is 2 * 12 mean * 12 mean.
    np.testing.assert_allclose(second, 2 * (12 * mean) * (12 * mean))


@on_ranks(2, full=(1,))
def test_a_tape_inside_a_tape(hvd):
    """A gradient penalty: a distributed inner tape gives a warning, once; a plain one, and tapes side by side, do not."""
    v, said = tf.Variable(2.0), []
    noted = logging.Handler()
    noted.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("tfddl").addHandler(noted)
    warn_once.cache_clear()

    def penalty(inner):
        with hvd.DistributedGradientTape(tf.GradientTape()) as outer:
            with inner:
                y = v * v
            loss = inner.gradient(y, v) ** 2
        return outer.gradient(loss, v)

    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        y = v * v
        tape.gradient(y, v)
    with (
        hvd.DistributedGradientTape(tf.GradientTape()) as one,
        hvd.DistributedGradientTape(tf.GradientTape()) as two,
    ):
        y, z = v * v, 2 * v
    one.gradient(y, v), two.gradient(z, v)
    penalty(tf.GradientTape())
    assert said == []
    for _ in range(2):
        tf.function(penalty)(hvd.DistributedGradientTape(tf.GradientTape()))
    logging.getLogger("tfddl").removeHandler(noted)
    assert len(said) == (hvd.rank() == 0 and hvd.size() > 1)
    assert all("If the loss of the outer tape uses this gradient" in each for each in said)


@pytest.mark.parametrize("mode", MODES)
@on_ranks(2)
def test_jacobians_are_the_ranks_own(hvd, mode):
    own, _ = factor(hvd)

    def step():
        x = tf.constant([[1.0, 2.0]])
        with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
            tape.watch(x)
            y = x * x * own
        return tape.jacobian(y, x), tape.batch_jacobian(y, x)

    jacobian, batch = run(mode, step)
    np.testing.assert_allclose(batch[0], [[2 * own, 0], [0, 4 * own]])
    np.testing.assert_allclose(jacobian[0, :, 0], batch[0])


@pytest.mark.parametrize("sparse_as_dense", [False, True])
@pytest.mark.parametrize("mode", MODES)
@on_ranks(2)
def test_indexed_slices_have_each_index_once(hvd, mode, sparse_as_dense):
    table = tf.Variable(tf.zeros([4, 2]))
    rows = [[0, 1, 1], [1, 3, 3]][hvd.rank()]

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape(), sparse_as_dense=sparse_as_dense) as tape:
            y = tf.reduce_sum(tf.gather(table, rows))
        return tape.gradient(y, table)

    gradient = run(mode, step)
    assert isinstance(gradient, tf.Tensor if sparse_as_dense else tf.IndexedSlices)
    if not sparse_as_dense:
        assert sorted(gradient.indices.numpy().tolist()) == [0, 1, 3]
    np.testing.assert_allclose(tf.convert_to_tensor(gradient)[:, 0], [0.5, 1.5, 0.0, 1.0])


@pytest.mark.parametrize("mode", MODES)
@on_ranks(2)
def test_dtypes_together(hvd, mode):
    own, mean = factor(hvd)
    variables = [tf.Variable(tf.ones([3], dtype)) for dtype in ("float32", "float16", "bfloat16", "float64")]

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            y = tf.add_n([tf.cast(tf.reduce_sum(v * v), "float32") for v in variables]) * own
        return tape.gradient(y, variables)

    for gradient, variable in zip(run(mode, step), variables, strict=True):
        assert gradient.dtype == variable.dtype
        np.testing.assert_allclose(tf.cast(gradient, "float32"), np.full(3, 2 * mean))


@on_ranks(2)
def test_unknown_shapes(hvd):
    own, mean = factor(hvd)

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec([None, 2])])
    def step(x, z):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            tape.watch([x, z])
            y = (tf.reduce_sum(x * x) + tf.reduce_sum(z)) * own
        return tape.gradient(y, [x, z])

    gx, gz = step(tf.ones([2, 3]), tf.ones([5, 2]))
    np.testing.assert_allclose(gx, np.full([2, 3], 2 * mean))
    np.testing.assert_allclose(gz, np.full([5, 2], mean))


@pytest.mark.parametrize("mode", MODES)
@on_ranks(2)
def test_two_tapes_and_retracing_on_one_rank(hvd, mode):
    own, mean = factor(hvd)
    v, w = tf.Variable(1.0), tf.Variable([1.0, 1.0])

    def step(scale):
        with tf.GradientTape() as one, tf.GradientTape() as two:
            y, z = v * own * scale, tf.reduce_sum(w) * own
        one, two = hvd.DistributedGradientTape(one), hvd.DistributedGradientTape(two)
        return one.gradient(y, v), two.gradient(z, w)

    step = tf.function(step) if mode == "graph" else step
    for turn in range(4):
        # A Python number retraces for each value: rank 1 traces four times, rank 0 once.
        first, second = step(1.0 if hvd.rank() == 0 else 1.0 + turn)
        np.testing.assert_allclose(first, (1 + 2 * (1 + turn)) / 2)
        np.testing.assert_allclose(second, [mean, mean])


@pytest.mark.parametrize("branches", [False, True])
@on_ranks(2, full=(3,))
def test_two_tapes_in_a_graph_asked_in_different_orders(hvd, branches):
    """A tape has the number of the call that made it, also in branches that exclude each other."""
    own, mean = factor(hvd)
    v, w = tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0])

    def both():
        with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as one:
            y = tf.reduce_sum(v) * own
            z = tf.reduce_sum(v) * own * 10
        with hvd.DistributedGradientTape(tf.GradientTape()) as two:
            u = tf.reduce_sum(w) * own * 100
        if hvd.rank() == 0:
            last = two.gradient(u, w)
        first, second = one.gradient(y, v), one.gradient(z, v)
        return first, second, last if hvd.rank() == 0 else two.gradient(u, w)

    @tf.function
    def step(even):
        return tf.cond(even, both, both) if branches else both()

    first, second, last = step(tf.constant(hvd.rank() % 2 == 0))
    np.testing.assert_allclose(first, [mean, mean])
    np.testing.assert_allclose(second, [10 * mean] * 2)
    np.testing.assert_allclose(last, [100 * mean] * 2)


@on_ranks(2)
def test_two_gradients_of_batches_of_any_size(hvd):
    """The names of the first computation's buckets are not that of the second computation."""
    own, mean = factor(hvd)
    weights = tf.Variable(tf.ones([3, 1]))

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def step(x):
        with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
            tape.watch(x)
            y = tf.matmul(x, weights)
            z = 10 * y
        return *tape.gradient(y, [x, weights]), tape.gradient(z, weights)

    rows, once, tenfold = step(tf.fill([2, 3], own))
    np.testing.assert_allclose(rows, np.ones([2, 3]))
    np.testing.assert_allclose(once, np.full([3, 1], 2 * mean))
    np.testing.assert_allclose(tenfold, np.full([3, 1], 20 * mean))


@on_ranks(1)
def test_refusals(hvd):
    with pytest.raises(ValueError, match=r"op=tfddl.Sum or op=tfddl.Adasum: .* Received: op=Min"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Min)
    with pytest.raises(TypeError, match=r"wraps a tf.GradientTape"):
        hvd.DistributedGradientTape(tf.Variable(1.0))
