"""Compressions that keep their errors with each option of tapes and optimizers, and what is refused."""

import os
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.gradients.test_compressed import COMPRESSIONS
from tests.harness import on_ranks


@pytest.mark.parametrize("kind", COMPRESSIONS)
@on_ranks(2, full=(3,))
def test_options(hvd, kind):
    """Sum, a factor, groups, 16 and 64 bits, rows, local variables and a rank outside of the process set."""
    shapes = [(20, 30), (30, 20), (5,)]
    given = [np.outer(np.arange(1, 21), np.ones(30)), np.outer(np.ones(30), np.arange(20)), np.ones(5)]
    given = [each * (1 + hvd.rank()) for each in given]
    mean = (hvd.size() + 1) / 2

    def step(dtype="float32", local=None, **options):
        variables = [tf.Variable(tf.zeros(shape, dtype)) for shape in shapes]
        with hvd.DistributedGradientTape(
            tf.GradientTape(), compression=COMPRESSIONS[kind](hvd), **options
        ) as tape:
            if local is not None:
                tape.register_local_source(variables[local])
            loss = tf.add_n(
                [tf.reduce_sum(v * g.astype(dtype)) for v, g in zip(variables, given, strict=True)]
            )
        return tape.gradient(loss, variables)

    def check(found, times=1.0, rtol=1e-5):
        for one, own in zip(found, given, strict=True):
            expected = own / (1 + hvd.rank()) * mean * times
            # In int8 a block may hold the ends of two gradients.
            error = (0.02 if kind == "int8" else rtol) * 20 * mean * times
            np.testing.assert_allclose(np.asarray(one, "float64"), expected, rtol=0, atol=error)

    check(step())
    check(step(op=hvd.Sum), hvd.size())
    check(step(gradient_predivide_factor=4.0))
    check(step(groups=2))
    check(step("float64"))
    check(step("bfloat16"), rtol=0.02)
    found = step(local=1)
    np.testing.assert_allclose(found[1], given[1] / hvd.size())
    assert found[0].shape == (20, 30)

    first = hvd.add_process_set([0])
    found = step(process_set=first)
    if hvd.rank():
        assert [each.numpy().tolist() for each in found] == [each.tolist() for each in given]
    hvd.remove_process_set(first)

    table = tf.Variable(tf.zeros([40, 50]))
    with hvd.DistributedGradientTape(tf.GradientTape(), compression=COMPRESSIONS[kind](hvd)) as tape:
        loss = tf.reduce_sum(tf.gather(table, [hvd.rank()]))
    rows = tape.gradient(loss, table)
    assert isinstance(rows, tf.IndexedSlices) and np.all(rows.values == 1 / hvd.size())


@on_ranks(2)
def test_what_is_refused(hvd):
    with pytest.raises(
        ValueError, match=r"compression = hvd\.Compression\.int8\(\), and give it to each tape"
    ):
        hvd.DistributedGradientTape(tf.GradientTape(), compression=hvd.Compression.int8)
    with pytest.raises(ValueError, match=r"compression = hvd\.PowerSGD\(\)"):
        hvd.DistributedGradientTape(tf.GradientTape(), compression=hvd.PowerSGD)
    for compression in (hvd.Compression.int8, hvd.PowerSGD(3)):
        with pytest.raises(ValueError, match=r"op=tfddl\.Adasum combines gradients that are not rounded"):
            hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Adasum, compression=compression)
        with pytest.raises(
            ValueError, match="keeps errors from step to step: give it to DistributedOptimizer"
        ):
            hvd.allreduce(tf.ones([2]), compression=compression)
    for options in ({"rank": 0}, {"rank": 1.5}, {"seed": -1}, {"rank": True}):
        with pytest.raises(ValueError, match=r"of PowerSGD is a whole number: pass [01] or more\. Received"):
            hvd.PowerSGD(**options)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(), compression=hvd.PowerSGD(3))
    with pytest.raises(ValueError, match=r"with compression=PowerSGD\(rank=3, seed=0\)"):
        hvd.DistributedOptimizer(optimizer, compression=hvd.PowerSGD(2))
    # One gradient each, of one shape, but of another variable.
    variables = [tf.Variable(tf.zeros([20, 30])) for _ in range(2)]
    for kind in COMPRESSIONS.values():
        with hvd.DistributedGradientTape(tf.GradientTape(), compression=kind(hvd)) as tape:
            loss = tf.reduce_sum(variables[hvd.rank()])
        with pytest.raises(tf.errors.FailedPreconditionError, match="of 2"):
            tape.gradient(loss, variables)
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable("weight", [4, 5])
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(0.1), compression=hvd.PowerSGD(1)
        )
        with pytest.raises(ValueError, match="which a graph of TF1 cannot"):
            optimizer.minimize(tf.reduce_sum(weight))


@pytest.mark.parametrize("kind", COMPRESSIONS)
@on_ranks(2)
def test_buckets_and_an_optimizer_of_tf1(hvd, kind):
    """Several buckets; two functions and two traces of one share the state; the options of the ranks are compared."""
    target = [np.random.default_rng([hvd.rank(), slot]).normal(size=(30, 40)) for slot in range(3)]
    mean = [
        sum(np.random.default_rng([rank, slot]).normal(size=(30, 40)) for rank in range(2)) / 2
        for slot in range(3)
    ]
    weights = [tf.Variable(tf.zeros([30, 40])) for _ in range(3)]
    compression = COMPRESSIONS[kind](hvd)
    optimizer = hvd.DistributedOptimizer(
        tf.compat.v1.train.GradientDescentOptimizer(0.05), compression=compression
    )

    @tf.function
    def step(again):
        gradients = [each - goal.astype("float32") for each, goal in zip(weights, target, strict=True)]
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    with mock.patch.dict(os.environ, TFDDL_BUCKET_MB="0.003"):
        for number in range(300):
            step(number % 2 == 0)
    assert len(compression.variables) == (1 + 3 + 3 if kind == "int8" else 3 + 3)
    for one, expected in zip(weights, mean, strict=True):
        np.testing.assert_allclose(one, expected, atol=0.05)

    network = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(), compression=hvd.PowerSGD(1 + hvd.rank()))
    network.compile(optimizer, "mse")
    with pytest.raises(ValueError, match=r"rank 1: compression=PowerSGD\(rank=2, seed=0\)"):
        network.fit(
            np.ones((4, 8)), np.ones((4, 1)), callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        )
