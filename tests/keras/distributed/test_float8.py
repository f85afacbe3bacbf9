"""float8 layers: their scales and histories are the largest of all ranks, which one process would have seen."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import long, on_ranks, slow
from tests.keras import support

MODES = ("graph", long("jit"))  # Keras' own float8 layers do not train eagerly.
SCALED = ("inputs", "kernel")


def network():
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [keras.Input((support.FEATURES,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)]
    )
    model.quantize("float8")
    return model


def states(model):
    """What the layers know of inputs and kernels; that of the outputs' gradients depends on the number of rows."""
    values = []
    for layer in model.layers:
        for what in SCALED:
            values += [getattr(layer, f"{what}_scale"), getattr(layer, f"{what}_amax_history")]
    return [value.numpy() for value in values]


@pytest.mark.parametrize("way", [slow("fit"), "tape", "loss scale", long("accumulation")])
@pytest.mark.parametrize("mode", MODES)
@on_ranks(2, full=(1, 3))
def test_equals_one_process(hvd, mode, way):
    """With a learning rate that moves nothing, for rounding to float8 is no mean."""
    size, steps = hvd.size(), 4
    arrays = support.data(size, "float32", steps)
    options = {"gradient_accumulation_steps": 2} if way == "accumulation" else {}
    model = network()
    optimizer = keras.optimizers.SGD(0.0, **options)
    mine = support.shard(arrays, hvd.rank(), size)
    if way == "tape":
        optimizer = hvd.DistributedOptimizer(optimizer)
        optimizer.build(model.trainable_variables)  # a function compiled by XLA cannot make variables
        tape = hvd.DistributedGradientTape
        support.loop(model, optimizer, mine, support.BATCH, tape=tape, jit=mode == "jit")
    else:
        if way == "loss scale":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, 8.0)
        optimizer = hvd.DistributedOptimizer(optimizer)
        support.fit(model, optimizer, mine, support.BATCH, jit_compile=mode == "jit")
    if hvd.rank() == 0:
        whole = network()
        support.fit(whole, keras.optimizers.SGD(0.0, **options), arrays, support.BATCH * size)
        for found, expected in zip(states(model), states(whole), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.count_nonzero(model.layers[0].inputs_amax_history.numpy()) == (2 if options else steps)
    support.check_equal_on_all_ranks(hvd, [*model.variables, *optimizer.variables])


@on_ranks(2)
def test_training_keeps_ranks_equal(hvd):
    model = network()
    mine = support.shard(support.data(2), hvd.rank(), 2)
    before = support.weights(model)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    support.fit(model, optimizer, mine, support.BATCH, epochs=2)
    assert np.abs(support.weights(model) - before).max() > 0.01
    support.check_equal_on_all_ranks(hvd, [*model.variables, *optimizer.variables])


@pytest.mark.parametrize("eager", [False, True])
@on_ranks(2)
def test_nothing_but_overwritten_variables(hvd, eager):
    """As of a layer whose kernel is frozen: nothing is left to reduce."""
    v = keras.Variable([0.0])
    v.overwrite_with_gradient = True
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
    optimizer.build([v])

    def step():
        optimizer.apply([tf.constant([3.0 + hvd.rank()])], [v])

    (step if eager else tf.function(step))()
    np.testing.assert_allclose(v.numpy(), [4.0])


@pytest.mark.parametrize("mode", MODES)
@on_ranks(2, full=(3,))
def test_local_layer(hvd, mode):
    """Its scales are next values, each rank's own, and not divided by the number of ranks."""
    mine = support.shard(support.data(hvd.size(), "float32", 4), hvd.rank(), hvd.size())
    alone, model = network(), network()
    support.fit(alone, keras.optimizers.SGD(0.0), mine, support.BATCH)
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.0), local_layers=model.layers[0])
    support.fit(model, optimizer, mine, support.BATCH, jit_compile=mode == "jit")
    layer, expected = model.layers[0], alone.layers[0]
    np.testing.assert_allclose(layer.inputs_scale.numpy(), expected.inputs_scale.numpy(), rtol=1e-6)
    np.testing.assert_allclose(
        layer.inputs_amax_history.numpy(), expected.inputs_amax_history.numpy(), rtol=1e-6
    )
