"""Training while some ranks have joined: gradients, a tape, an optimizer."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.join.uneven import STEPS, active, without
from tests.ops.finite import differences
from tests.ops.support import MODES, array, call
from tests.ops.test_adasum import adasum


@pytest.mark.parametrize("average_over", ["size", "active"])
@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3, full=(4,))
def test_training_with_uneven_data(hvd, mode, average_over):
    """The example of docs/data.md: a tape, uneven batches, and the weights of the last rank."""
    size, rank = hvd.size(), hvd.rank()
    w, rows = tf.Variable(tf.zeros([3])), tf.Variable(tf.ones([4, 2]))
    batches = [array(rank, "float32", (5, 3), seed=step) for step in range(STEPS[rank])]

    def step(x):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, w) - 1.0))
            loss += tf.reduce_sum(tf.square(tf.gather(rows, [rank % 4, 1])))
        dense, sparse = tape.gradient(loss, [w, rows])
        assert isinstance(sparse, tf.IndexedSlices)
        w.assign_sub(0.001 * dense)
        rows.assign_sub(0.001 * tf.convert_to_tensor(sparse))

    run = tf.function(step) if mode == "graph" else step
    expected_w, expected_rows = np.zeros(3), np.ones((4, 2))
    for _ in range(2):
        for x in batches:
            run(tf.constant(x))
        last = hvd.join(average_over=average_over)
        hvd.broadcast_variables([w, rows], root_rank=last)
        for number in range(max(STEPS[:size])):
            here = active(number, size)
            dense, sparse = np.zeros(3), np.zeros((4, 2))
            for other in here:
                x = array(other, "float64", (5, 3), seed=number)
                dense += 2 * x.T @ (x @ expected_w - 1) / len(x)
                for index in (other % 4, 1):
                    sparse[index] += 2 * expected_rows[index]
            divisor = size if average_over == "size" else len(here)
            expected_w -= 0.001 * dense / divisor
            expected_rows -= 0.001 * sparse / divisor
        np.testing.assert_allclose(w, expected_w, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(rows, expected_rows, rtol=1e-5)


@on_ranks(2, 3)
def test_an_optimizer_with_uneven_data(hvd):
    """Keras' optimizer with an embedding; its state is broadcast as well."""
    size, rank = hvd.size(), hvd.rank()
    model = keras.Sequential([keras.layers.Embedding(5, 2), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.build((None, 3))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5))
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, 0)
    reference = keras.models.clone_model(model)
    reference.set_weights(model.get_weights())
    plain = keras.optimizers.SGD(0.1, momentum=0.5)

    def gradients(network, other, number):
        ids = np.abs(array(other, "int32", (4, 3), seed=number)) % 5
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(network(ids) - 1.0))
        return tape.gradient(loss, network.trainable_variables)

    for number in range(STEPS[rank]):
        optimizer.apply_gradients(zip(gradients(model, rank, number), model.trainable_variables, strict=True))
    last = hvd.join()
    hvd.broadcast_variables([*model.variables, *optimizer.variables], last)
    for number in range(max(STEPS[:size])):
        parts = [gradients(reference, other, number) for other in active(number, size)]
        averages = [sum(map(tf.convert_to_tensor, part)) / size for part in zip(*parts, strict=True)]
        plain.apply_gradients(zip(averages, reference.trainable_variables, strict=True))
    for mine, theirs in zip(model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert int(optimizer.iterations.numpy()) == max(STEPS[:size])


@pytest.mark.parametrize("average_over", ["size", "active"])
@on_ranks(2, 3, full=(4,))
def test_gradients(hvd, average_over):
    """Gradients of the ranks that have not joined, at their own inputs."""
    size, rank = hvd.size(), hvd.rank()
    others = range(1, size)
    divisor = size if average_over == "size" else size - 1
    inputs = [array(other, "float32", (2 * size + 1, 2), seed=3) for other in range(size)]

    def gradient(function):
        x = tf.constant(inputs[rank])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            # Each rank multiplies its elements by a weight of its own.
            loss = tf.reduce_sum(y * tf.cast(rank + 1, y.dtype))
        return tape.gradient(loss, x).numpy()

    def body():
        weights = sum(other + 1 for other in others)
        ones = np.ones_like(inputs[0])
        np.testing.assert_allclose(gradient(lambda x: hvd.allreduce(x)), weights * ones / divisor, rtol=1e-6)
        np.testing.assert_allclose(gradient(lambda x: hvd.allgather(x)), weights * ones)
        product = gradient(lambda x: hvd.allreduce(x, op=hvd.Product, prescale_factor=2.0))
        rest = [2 * inputs[other] for other in others if other != rank]
        np.testing.assert_allclose(product, 2 * weights * functools.reduce(np.multiply, rest, ones))
        owners = np.concatenate([np.full(len(part), r) for r, part in enumerate(np.array_split(ones, size))])
        mine = np.where(owners == 0, 0, owners + 1)[:, np.newaxis] * ones
        np.testing.assert_allclose(gradient(lambda x: hvd.reducescatter(x)), mine / divisor, rtol=1e-6)
        splits = [2, 1] + [1] * (size - 2)
        sent = np.concatenate([np.repeat(np.arange(size), splits), np.full(2 * size + 1 - sum(splits), 0)])
        mine = np.where(sent == 0, 0, sent + 1)[:, np.newaxis] * ones
        np.testing.assert_allclose(gradient(lambda x: hvd.alltoall(x, splits)[0]), mine)
        even = np.repeat(np.arange(size), 2)[:, np.newaxis]
        mine = np.where(even == 0, 0, even + 1) * ones[: 2 * size]
        np.testing.assert_allclose(gradient(lambda x: hvd.alltoall(x[: 2 * size]))[: 2 * size], mine)

    without(hvd, [0], body, average_over=average_over)


@pytest.mark.parametrize("mode", MODES)
@on_ranks(2, 3, full=(4,))
def test_gradients_of_what_is_no_sum(hvd, mode):
    """Min and Max, with ties; a broadcast; a group that is gathered; Adasum against finite differences."""
    size, rank = hvd.size(), hvd.rank()
    others = range(1, size)
    inputs = np.array([[other, 1, other % 2, -other] for other in range(size)], "float64")
    weights = sum(other + 1 for other in others)

    def gradient(function):
        def body(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = (rank + 1.0) * tf.reduce_sum(tf.cast(function(x), x.dtype))
            return tape.gradient(loss, x)

        return call(mode, body, inputs[rank]).numpy()

    def body():
        for op, best in ((hvd.Min, inputs[1:].min(axis=0)), (hvd.Max, inputs[1:].max(axis=0))):
            ties = inputs[1:] == best
            expected = weights * ties[rank - 1] / ties.sum(axis=0)
            np.testing.assert_allclose(gradient(lambda x, op=op: hvd.allreduce(x, op=op)), expected)
        sent = gradient(lambda x: hvd.broadcast(x, size - 1))
        np.testing.assert_array_equal(sent, np.full(4, weights if rank == size - 1 else 0))
        pair = gradient(lambda x: tf.concat(hvd.grouped_allgather([x, 2 * x]), 0))
        np.testing.assert_array_equal(pair, np.full(4, 3 * weights))
        combined = gradient(lambda x: hvd.allreduce(x, op=hvd.Adasum))

        def loss(parts):
            return weights * adasum(parts).sum()

        expected = differences(rank - 1, list(inputs[1:]), loss)
        np.testing.assert_allclose(combined, expected, rtol=1e-4, atol=1e-5)

    without(hvd, [0], body)
