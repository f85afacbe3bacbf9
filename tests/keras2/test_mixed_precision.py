"""LossScaleOptimizer of Keras 2: all ranks take the same steps and hold the same scale."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras2 import support

keras = tf.keras


def scale_of(optimizer):
    return float(optimizer.loss_scale)


@pytest.mark.parametrize("order", ["inside", "outside"])
@pytest.mark.parametrize("kind", ["new", "legacy"])
@pytest.mark.parametrize("passes", [1, 2])
@on_ranks(2, 3)
def test_an_infinity_on_one_rank(hvd, kind, order, passes):
    make = {"new": keras.optimizers, "legacy": keras.optimizers.legacy}[kind].SGD
    scaled = keras.mixed_precision.LossScaleOptimizer
    options = {"backward_passes_per_step": passes, "average_aggregated_gradients": True}
    if order == "inside":
        optimizer = scaled(hvd.DistributedOptimizer(make(1.0), **options), initial_scale=8.0)
    else:
        optimizer = hvd.DistributedOptimizer(scaled(make(1.0), initial_scale=8.0), **options)
    weight = tf.Variable(5.0)

    @tf.function
    def step(factor):
        with tf.GradientTape() as tape:
            loss = optimizer.get_scaled_loss(weight * factor)
        gradients = optimizer.get_unscaled_gradients(tape.gradient(loss, [weight]))
        optimizer.apply_gradients(zip(gradients, [weight], strict=True))

    for _ in range(passes):
        step(tf.constant(1.0 + hvd.rank()))
    start = 5 - (hvd.size() + 1) / 2
    np.testing.assert_allclose(weight.numpy(), start)
    step(tf.constant(np.inf if hvd.rank() == 1 else 1.0, tf.float32))
    assert (weight.numpy(), scale_of(optimizer)) == (start, 4.0)
    for _ in range(passes):
        step(tf.constant(1.0 + hvd.rank()))
    np.testing.assert_allclose(weight.numpy(), start - (hvd.size() + 1) / 2)
    assert scale_of(optimizer) == 4.0


@pytest.mark.parametrize("kind", ["new", "legacy"])
@on_ranks(1, 2, 3)
def test_fit_under_mixed_float16(hvd, kind):
    """compile() puts the LossScaleOptimizer around ours. Data is small enough for no rank to skip a step: one process with
    the whole batch, in which a rank's large gradients are averaged before they are float16, would not skip it."""
    arrays = [array / 8 for array in support.data(hvd.size())]
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        make = {"new": keras.optimizers, "legacy": keras.optimizers.legacy}[kind].Adam
        network, expected = support.model(), support.model()
        mine = support.shard(arrays, hvd.rank(), hvd.size())
        first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        support.fit(network, hvd.DistributedOptimizer(make(0.01)), mine, support.BATCH, callbacks=[first])
        assert isinstance(network.optimizer, keras.mixed_precision.LossScaleOptimizer)
        support.fit(expected, make(0.01), arrays, hvd.size() * support.BATCH)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    np.testing.assert_allclose(support.weights(network), support.weights(expected), atol=5e-3)
    support.check_equal_on_all_ranks(hvd, network.get_weights())
    assert scale_of(expected.optimizer) == 2.0**15
    assert set(hvd.allgather_object(scale_of(network.optimizer))) == {2.0**15}
