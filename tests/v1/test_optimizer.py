"""Optimizers of TF1 in sessions, against one process with the N-times batch."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras import support

v1 = tf.compat.v1
STEPS, BATCH = 6, 4
OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.3),
    "adam": lambda: v1.train.AdamOptimizer(0.1),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.05),
}


def batches(size):
    """[steps, ranks, batch, 3] and the targets."""
    generator = np.random.default_rng(7)
    x = generator.standard_normal((STEPS, size, BATCH, 3))
    return x, x @ [1.0, -2.0, 0.5] + generator.standard_normal((STEPS, size, BATCH))


def train(optimizer, batch_of, steps=STEPS, how="minimize"):
    """Trains a linear model; `batch_of(step)` gives x and y. Returns the weights and the global step."""
    with tf.Graph().as_default() as graph:
        x, y = v1.placeholder(tf.float64, [None, 3]), v1.placeholder(tf.float64, [None])
        weights = v1.get_variable("w", [3], tf.float64, v1.zeros_initializer())
        bias = v1.get_variable("b", [], tf.float64, v1.ones_initializer())
        loss = tf.reduce_mean((tf.linalg.matvec(x, weights) + bias - y) ** 2)
        step = v1.train.get_or_create_global_step()
        if how == "minimize":
            update = optimizer.minimize(loss, step)
        else:
            if how == "clip":
                gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
                gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
            else:
                variables = [weights, bias]
                gradients = v1.gradients(loss, variables)
            update = optimizer.apply_gradients(list(zip(gradients, variables, strict=True)), step)
        start = [v1.global_variables_initializer(), v1.local_variables_initializer()]
    with v1.Session(graph=graph) as session:
        session.run(start)
        for number in range(steps):
            session.run(update, dict(zip((x, y), batch_of(number), strict=True)))
        return session.run([weights, bias, step])


@pytest.mark.parametrize("how", ["minimize", "clip", "tf.gradients"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@on_ranks(2, full=(1, 3))
def test_trains_as_one_process_with_the_big_batch(hvd, name, how):
    x, y = batches(hvd.size())
    optimizer = OPTIMIZERS[name]()
    assert hvd.DistributedOptimizer(optimizer) is optimizer
    assert isinstance(optimizer, type(OPTIMIZERS[name]()))
    own = train(optimizer, lambda step: (x[step, hvd.rank()], y[step, hvd.rank()]), how=how)
    assert own[2] == STEPS
    if hvd.rank() == 0:
        whole = train(OPTIMIZERS[name](), lambda step: (x[step].reshape(-1, 3), y[step].reshape(-1)), how=how)
        np.testing.assert_allclose(own[0], whole[0], rtol=1e-10)
        np.testing.assert_allclose(own[1], whole[1], rtol=1e-10)
        assert whole[2] == STEPS
    for part in hvd.allgather_object(own[:2]):
        np.testing.assert_array_equal(part[0], own[0])
        np.testing.assert_array_equal(part[1], own[1])


@pytest.mark.parametrize("average", [False, True])
@on_ranks(2, full=(1, 3))
def test_backward_passes_per_step(hvd, average):
    """Two passes are one update, with the sum of their gradients or with the mean."""
    x, y = batches(hvd.size())
    optimizer = hvd.DistributedOptimizer(
        v1.train.MomentumOptimizer(0.05, 0.9),
        backward_passes_per_step=2,
        average_aggregated_gradients=average,
    )
    weights, bias, step = train(optimizer, lambda step: (x[step, hvd.rank()], y[step, hvd.rank()]))
    # Gradients of a mean over the batch of both passes; their sum is twice that, as with twice the rate.
    pairs = x.reshape(STEPS // 2, -1, 3), y.reshape(STEPS // 2, -1)
    expected = train(
        v1.train.MomentumOptimizer(0.05 if average else 0.1, 0.9),
        lambda step: (pairs[0][step], pairs[1][step]),
        steps=STEPS // 2,
    )
    np.testing.assert_allclose(weights, expected[0], rtol=1e-10)
    np.testing.assert_allclose(bias, expected[1], rtol=1e-10)
    assert step == STEPS


@on_ranks(2)
def test_passes_of_two_optimizers(hvd):
    """Each has sums of its own, also in a variable scope that shares variables."""
    with tf.Graph().as_default() as graph:
        updates = []
        for name, factor in (("a", 1.0), ("b", 10.0)):
            weight = v1.get_variable(name, initializer=0.0, use_resource=True)
            with v1.variable_scope("train", reuse=v1.AUTO_REUSE):
                optimizer = hvd.DistributedOptimizer(
                    v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
                )
                updates.append(optimizer.minimize(weight * factor, var_list=[weight]))
        start = [v1.global_variables_initializer(), v1.local_variables_initializer()]
        weights = v1.global_variables()
    with v1.Session(graph=graph) as session:
        session.run(start[0])
        with pytest.raises(
            tf.errors.OpError, match=r"not initialized the sums.* run tf.compat.v1.local_variables_init"
        ):
            session.run(updates)
        session.run(start)
        for _ in range(4):
            session.run(updates)
        assert session.run(weights) == [-4.0, -40.0]


@on_ranks(2)
def test_an_incomplete_set_of_passes_changes_nothing(hvd):
    x, y = batches(2)
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1), backward_passes_per_step=3)
    weights, bias, step = train(optimizer, lambda step: (x[step, hvd.rank()], y[step, hvd.rank()]), steps=2)
    np.testing.assert_array_equal(weights, np.zeros(3))
    assert (bias, step) == (1.0, 2)


def embedding_steps(optimizer, words_of, steps=4):
    with tf.Graph().as_default() as graph:
        words = v1.placeholder(tf.int64, [None])
        table = v1.get_variable("table", initializer=np.arange(12.0).reshape(6, 2))
        loss = tf.reduce_mean(tf.gather(table, words) ** 2)
        update = optimizer.minimize(loss)
        start = [v1.global_variables_initializer(), v1.local_variables_initializer()]
    with v1.Session(graph=graph) as session:
        session.run(start)
        for step in range(steps):
            session.run(update, {words: words_of(step)})
        return session.run(table)


@pytest.mark.parametrize("options", [{}, {"sparse_as_dense": True}], ids=["rows", "dense"])
@on_ranks(2, full=(1, 3))
def test_sparse_gradients(hvd, options):
    words = np.random.default_rng(3).integers(0, 6, (4, hvd.size(), 5))
    optimizer = hvd.DistributedOptimizer(v1.train.AdagradOptimizer(0.5), **options)
    table = embedding_steps(optimizer, lambda step: words[step, hvd.rank()])
    whole = embedding_steps(v1.train.AdagradOptimizer(0.5), lambda step: words[step].reshape(-1))
    np.testing.assert_allclose(table, whole, rtol=1e-10)


@on_ranks(2)
def test_passes_of_sparse_gradients(hvd):
    words = np.random.default_rng(3).integers(0, 6, (4, 2, 5))
    optimizer = hvd.DistributedOptimizer(
        v1.train.GradientDescentOptimizer(0.5),
        backward_passes_per_step=2,
        average_aggregated_gradients=True,
        sparse_as_dense=True,
    )
    table = embedding_steps(optimizer, lambda step: words[step, hvd.rank()])
    both = words.reshape(2, -1)
    whole = embedding_steps(v1.train.GradientDescentOptimizer(0.5), lambda step: both[step], steps=2)
    np.testing.assert_allclose(table, whole, rtol=1e-10)
    plain = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.5), backward_passes_per_step=2)
    with pytest.raises(ValueError, match="sparse_as_dense=True"):
        embedding_steps(plain, lambda step: words[step, hvd.rank()])


@pytest.mark.parametrize("outside", [True, False])
@on_ranks(2, full=(3,))
def test_loss_scale_skips_on_all_ranks(hvd, outside):
    """inf on rank 1 only: no rank updates, and all halve the scale."""
    scaled = v1.mixed_precision.MixedPrecisionLossScaleOptimizer
    plain = v1.train.GradientDescentOptimizer(1.0)
    with tf.Graph().as_default() as graph:
        scale = v1.mixed_precision.DynamicLossScale(initial_loss_scale=8.0, increment_period=100)
        inner = hvd.DistributedOptimizer(plain) if outside else plain
        optimizer = scaled(inner, scale)
        if not outside:
            optimizer = hvd.DistributedOptimizer(optimizer)
        factor = v1.placeholder(tf.float32, [])
        weight = v1.get_variable("w", initializer=5.0)
        update = optimizer.minimize(weight * factor)
        scale_now = scale()
        start = v1.global_variables_initializer()
    with v1.Session(graph=graph) as session:
        session.run(start)
        session.run(update, {factor: np.inf if hvd.rank() == 1 else 1.0})
        assert session.run([weight, scale_now]) == [5.0, 4.0]
        session.run(update, {factor: 1.0})
        assert session.run([weight, scale_now]) == [4.0, 4.0]


@on_ranks(2, full=(1, 3))
def test_eager_with_a_tape_of_tensorflow_or_ours(hvd):
    mean = (hvd.size() + 1) / 2
    for wrap in (lambda tape: tape, hvd.DistributedGradientTape):
        weight = tf.Variable(0.0)
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Sum)
        for _ in range(2):
            options = {} if wrap is not hvd.DistributedGradientTape else {"op": hvd.Sum}
            with wrap(tf.GradientTape(), **options) as tape:
                loss = weight * (hvd.rank() + 1.0)
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        np.testing.assert_allclose(weight.numpy(), -2 * mean * hvd.size())


@on_ranks(2, full=(1,))
def test_eager_minimize_of_a_function(hvd):
    weight = tf.Variable(1.0)
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    optimizer.minimize(lambda: weight * (hvd.rank() + 1.0), var_list=[weight])
    np.testing.assert_allclose(weight.numpy(), 1 - (hvd.size() + 1) / 2)


@on_ranks(3)
def test_process_set(hvd):
    """The ranks of the set share an update; another trains on its own."""
    pair = hvd.add_process_set([0, 1])
    weight = tf.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), process_set=pair)
    optimizer.minimize(lambda: weight * (hvd.rank() + 1.0), var_list=[weight])
    np.testing.assert_allclose(weight.numpy(), -1.5 if hvd.rank() < 2 else -3.0)
    hvd.remove_process_set(pair)


@on_ranks(1)
def test_what_cannot_be(hvd):
    optimizer = hvd.DistributedOptimizer(v1.train.AdamOptimizer())
    assert hvd.DistributedOptimizer(optimizer) is optimizer
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
    passes = hvd.DistributedOptimizer(v1.train.AdamOptimizer(), backward_passes_per_step=2)
    weight = tf.Variable(1.0)
    with pytest.raises(ValueError, match="in a graph of TF1 only"):
        passes.minimize(lambda: weight * 2.0, var_list=[weight])
    with pytest.raises(ValueError, match="minimize"):
        passes.apply_gradients([(tf.constant(1.0), weight)])
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=5.0)
        twice = hvd.DistributedOptimizer(v1.train.AdamOptimizer(), backward_passes_per_step=2)
        twice.minimize(weight * 2.0)
        with pytest.raises(ValueError, match="second call"):
            twice.minimize(weight * 3.0)


@on_ranks(1)
def test_no_local_layers(hvd):
    with pytest.raises(TypeError, match=r"an optimizer of Keras\. Received: .*AdamOptimizer"):
        hvd.PartialDistributedOptimizer(v1.train.AdamOptimizer())


@pytest.mark.parametrize("passes", [1, 2])
@on_ranks(2, full=(3,))
def test_gradients_of_different_variables_of_one_shape(hvd, passes):
    optimizer = hvd.DistributedOptimizer(
        v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=passes
    )
    with tf.Graph().as_default() as graph:
        weights = [v1.get_variable(name, initializer=5.0) for name in "ab"]
        update = optimizer.minimize(2 * weights[int(hvd.rank() == 1)], var_list=weights)
        start = [v1.global_variables_initializer(), v1.local_variables_initializer()]
    with v1.Session(graph=graph) as session:
        session.run(start)
        wanted = r"gradients \[0\] of 2.*gradients \[1\] of 2"
        with pytest.raises(tf.errors.FailedPreconditionError, match=wanted):
            for _ in range(passes):
                session.run(update)


@on_ranks(2)
def test_passes_with_the_loss_scale_outside(hvd):
    """A loss scale outside of the accumulation is refused; inside, an infinity skips the step of all passes."""
    scaled = v1.mixed_precision.MixedPrecisionLossScaleOptimizer
    options = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
    scales = v1.mixed_precision.FixedLossScale, v1.mixed_precision.DynamicLossScale
    for kind, raises in zip(scales, (False, True), strict=True):
        with tf.Graph().as_default():
            weight = v1.get_variable("w", initializer=5.0)
            mine = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), **options)
            outside = scaled(mine, kind(8.0))
            wanted = r"DistributedOptimizer\(MixedPrecisionLossScaleOptimizer"
            with pytest.raises(ValueError, match=wanted) if raises else contextlib.nullcontext():
                outside.minimize(weight * 2.0)
    with tf.Graph().as_default() as graph:
        scale = v1.mixed_precision.DynamicLossScale(initial_loss_scale=8.0, increment_period=100)
        factor = v1.placeholder(tf.float32, [])
        weight = v1.get_variable("w", initializer=5.0)
        inside = hvd.DistributedOptimizer(scaled(v1.train.GradientDescentOptimizer(1.0), scale), **options)
        update = inside.minimize(weight * factor)
        start = [v1.global_variables_initializer(), v1.local_variables_initializer()]
    with v1.Session(graph=graph) as session:
        session.run(start)
        seen = []
        for number in range(4):
            session.run(update, {factor: np.inf if number == 0 and hvd.rank() == 1 else 1.0})
            seen.append(session.run(weight))
        assert seen == [5.0, 5.0, 5.0, 4.0]


@on_ranks(2)
def test_gradients_from_elsewhere_after_compute_gradients(hvd):
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    with tf.Graph().as_default(), support.logged() as said:
        a, b = (v1.get_variable(name, initializer=1.0) for name in "ab")
        pairs = optimizer.compute_gradients(a * 2.0, var_list=[a])
        (clipped,), _ = tf.clip_by_global_norm([pairs[0][0]], 0.5)
        optimizer.apply_gradients([(clipped, a)])
        assert not said
        optimizer.apply_gradients([*pairs, (v1.gradients(b * 2.0, [b])[0], b)])
    assert len(said) == (hvd.rank() == 0)
    assert all("gradients of b:0" in text for text in said)


@on_ranks(2)
def test_clipped_gradients_of_a_tape_beside_others(hvd):
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    a, b = tf.Variable(0.0), tf.Variable(0.0)

    @tf.function
    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = a * (hvd.rank() + 1.0)
        with tf.GradientTape() as other:
            other_loss = b * (hvd.rank() + 1.0)
        clipped = tf.clip_by_norm(tape.gradient(loss, a), 9.0)
        optimizer.apply_gradients([(clipped, a), (other.gradient(other_loss, b), b)])

    step()
    assert (a.numpy(), b.numpy()) == (-1.5, -1.5)


@on_ranks(2, full=(1, 3))
def test_eager_tape_after_minimize(hvd):
    first, second = tf.Variable(0.0), tf.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    optimizer.minimize(lambda: first * (hvd.rank() + 1.0), var_list=[first])
    optimizer.apply_gradients([(tf.constant(hvd.rank() + 1.0), second)])
    np.testing.assert_allclose([first.numpy(), second.numpy()], [-(hvd.size() + 1) / 2] * 2)


@on_ranks(2, full=(1,))
def test_eager_tape_after_minimize_in_a_function(hvd):
    """A trace of `compute_gradients` says nothing about eager mode, and its gradients may be applied in a branch."""
    weight = tf.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Sum)

    @tf.function
    def step(applies):
        pairs = optimizer.compute_gradients(lambda: weight * (hvd.rank() + 1.0), var_list=[weight])
        if applies:
            optimizer.apply_gradients(pairs)

    step(tf.constant(True))
    optimizer.apply_gradients([(tf.constant(hvd.rank() + 1.0), weight)])
    np.testing.assert_allclose(weight.numpy(), -2 * hvd.size() * (hvd.size() + 1) / 2)
