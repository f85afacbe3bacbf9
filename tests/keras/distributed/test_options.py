"""The options of DistributedOptimizer, against one process with the N-times batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow
from tests.keras import support

MODES = ("eager", "graph", slow("jit"))
WORDS = 7


def requests():
    from tfddl.runtime import stats

    return stats()["requests"]


def compile_mode(mode):
    return {"run_eagerly": mode == "eager", "jit_compile": mode == "jit"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{"gradient_predivide_factor": 3.0}, {"groups": 1}, {"groups": 3}])
@on_ranks(2, full=(1, 3))
def test_what_changes_no_result(hvd, options, mode):
    size = hvd.size()
    arrays = support.data(size, "float64")
    network = support.model("float64")
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9), **options)
    before = requests()
    support.fit(
        network, optimizer, support.shard(arrays, hvd.rank(), size), support.BATCH, **compile_mode(mode)
    )
    assert requests() - before == support.STEPS * options.get("groups", 1)
    if hvd.rank() == 0:
        whole = support.model("float64")
        support.fit(whole, keras.optimizers.SGD(0.05, momentum=0.9), arrays, support.BATCH * size)
        np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-10)
    support.check_equal_on_all_ranks(hvd, [*network.variables, *optimizer.variables])


@pytest.mark.parametrize("mode", MODES)
@on_ranks(2)
def test_groups_of_variables(hvd, mode):
    """Kernels in one piece, biases in another."""
    arrays = support.data(2, "float64")
    whole, network = support.model("float64"), support.model("float64")
    support.fit(whole, keras.optimizers.SGD(0.05), arrays, support.BATCH * 2)
    groups = [[layer.kernel for layer in network.layers], [layer.bias for layer in network.layers]]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), groups=groups)
    before = requests()
    support.fit(network, optimizer, support.shard(arrays, hvd.rank(), 2), support.BATCH, **compile_mode(mode))
    assert requests() - before == 2 * support.STEPS
    np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-10)


@pytest.mark.parametrize("scaled", [False, True])
@on_ranks(2)
def test_gradients_alone(hvd, scaled):
    """`apply` knows the variables of `build`."""
    variable = keras.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0)
    optimizer.build([variable])
    optimizer.apply([tf.constant([4.0 * hvd.rank()])])
    assert float(variable[0]) == (-1.0 if scaled else -2.0)


@on_ranks(2)
def test_groups_with_a_compression_that_keeps_residuals(hvd):
    ones, twos = keras.Variable(tf.zeros([64])), keras.Variable(tf.zeros([64]))
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=hvd.Compression.int8, groups=[[ones], [twos]]
    )
    optimizer.apply([tf.fill([64], 1.0 + hvd.rank()), tf.fill([64], 2.0)], [ones, twos])
    np.testing.assert_allclose([ones[0], twos[0]], [-1.5, -2.0], rtol=0.02)


class Seen(keras.optimizers.SGD):
    """Keeps the types of the gradients that it gets after the reduction."""

    def _clip_gradients(self, grads):
        Seen.types = [type(grad) for grad in grads]
        return super()._clip_gradients(grads)


def embedding():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [keras.Input((3,), dtype="int32"), keras.layers.Embedding(WORDS, 4), keras.layers.Flatten()]
    )


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("mode", ["eager", "graph"])
@on_ranks(2, full=(1, 3))
def test_sparse_as_dense(hvd, mode, dense):
    size = hvd.size()
    x = np.random.default_rng(1).integers(0, WORDS, (8 * size, 3))
    y = np.ones([8 * size, 12], "float32")
    whole, network = embedding(), embedding()
    support.fit(whole, keras.optimizers.SGD(0.5), (x, y), 4 * size)
    optimizer = hvd.DistributedOptimizer(Seen(0.5), sparse_as_dense=dense)
    mine = support.shard((x, y), hvd.rank(), size)
    support.fit(network, optimizer, mine, 4, run_eagerly=mode == "eager")
    assert issubclass(Seen.types[0], tf.IndexedSlices) != dense
    np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-5)
    support.check_equal_on_all_ranks(hvd, network.variables)


@on_ranks(2)
def test_adasum_of_rows_wants_them_dense(hvd):
    table = tf.Variable(tf.zeros([3, 1]))
    rows = tf.IndexedSlices(tf.constant([[2.0]]), tf.constant([hvd.rank()]), tf.constant([3, 1]))
    for options in ({}, {"sparse_as_dense": True}):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Adasum, **options)
        if options:
            optimizer.apply_gradients([(rows, table)])
        else:
            with pytest.raises(ValueError, match=r"use sparse_as_dense=True. Received: a tf.IndexedSlices"):
                optimizer.apply_gradients([(rows, table)])
    np.testing.assert_allclose(table, [[-2.0], [-2.0], [0.0]])  # orthogonal, so that they are added up


@on_ranks(2)
def test_one_optimizer_in_two_models(hvd):
    """Distributed twice and compiled twice, over the same weights: one optimizer, which reduces once a step."""
    arrays = support.data(2, "float64")
    plain, network = support.model("float64"), support.model("float64")
    optimizers = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)
    for model, optimizer, size in ((plain, optimizers[0], 1), (network, optimizers[1], 2)):
        twin = keras.Sequential(model.layers)
        part = arrays if size == 1 else support.shard(arrays, hvd.rank(), 2)
        before = requests()
        for each in (model, twin):
            if size == 2:
                optimizer = hvd.DistributedOptimizer(hvd.DistributedOptimizer(optimizer))
            support.fit(each, optimizer, part, support.BATCH * 2 // size)
        assert requests() - before == (2 * support.STEPS if size == 2 else 0)
    np.testing.assert_allclose(support.weights(network), support.weights(plain), rtol=1e-10)
    support.check_equal_on_all_ranks(hvd, [*network.variables, *optimizers[1].variables])


@on_ranks(1)
def test_another_value_the_second_time_is_an_error(hvd):
    v = tf.Variable([1.0])
    for options in (
        {"groups": 2},
        {"groups": [[v]]},
        {"gradient_predivide_factor": 2.0},
        {"sparse_as_dense": True},
        {"backward_passes_per_step": 2},
        {"scale_local_gradients": False},
    ):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(), **options)
        assert hvd.DistributedOptimizer(optimizer, **options) is optimizer
        (name,) = options
        with pytest.raises(ValueError, match=f"distributed already, with {name}=.*Received: {name}="):
            hvd.DistributedOptimizer(optimizer)
