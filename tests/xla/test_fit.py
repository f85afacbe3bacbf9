"""Keras' fit with jit_compile=True: the weights of jit_compile=False, with the same bits on all ranks."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import long, on_ranks
from tests.keras import support

SCALE = 2.0**8  # gradients of this model do not overflow with this scale

CASES = {
    "plain": {},
    "steps_per_execution": {"steps_per_execution": 5},
    "accumulation": {"gradient_accumulation_steps": 2},
    "mixed": {"policy": "mixed_float16"},
    "mixed with accumulation": {"policy": "mixed_float16", "gradient_accumulation_steps": 2},
}
CASES["all"] = {**CASES["mixed with accumulation"], **CASES["steps_per_execution"]}


def _train(hvd, jit, policy="float32", gradient_accumulation_steps=None, callbacks=(), **options):
    """Trains for two epochs, and returns the model."""
    network = support.model(keras.DTypePolicy(policy))
    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=gradient_accumulation_steps)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=SCALE)
    network.compile(hvd.DistributedOptimizer(optimizer), "mse", jit_compile=jit, **options)
    x, y = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    if policy == "mixed_float16" and hvd.rank() == hvd.size() - 1:
        x[0] = np.inf  # all ranks skip the first step of each epoch
    network.fit(x, y, batch_size=support.BATCH, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))
    return network


@pytest.mark.parametrize("case", ["all", *(long(case) for case in CASES if case != "all")])
@on_ranks(2, full=(1, 3))
def test_same_weights(hvd, case):
    before = support.weights(support.model(keras.DTypePolicy(CASES[case].get("policy", "float32"))))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    compiled = _train(hvd, True, callbacks=callbacks, **CASES[case])
    assert compiled.jit_compile is True
    support.check_equal_on_all_ranks(hvd, compiled.variables + compiled.optimizer.variables)
    plain = _train(hvd, False, **CASES[case])
    mixed = "policy" in CASES[case]
    if mixed:
        for network in (compiled, plain):
            assert float(tf.convert_to_tensor(network.optimizer.dynamic_scale)) == SCALE / 4
    assert np.abs(support.weights(plain) - before).max() > 5e-3  # it has trained
    # XLA of TensorFlow 2.16 keeps float32 between operations of float16.
    tolerance = 5e-4 if mixed else 1e-5
    np.testing.assert_allclose(support.weights(compiled), support.weights(plain), rtol=1e-5, atol=tolerance)


@on_ranks(2, full=(1,))
def test_the_default_of_a_machine_with_a_gpu(hvd):
    """On a GPU Keras sets jit_compile=True by itself, not on request of the user."""
    devices = [*tf.config.list_physical_devices(), tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")]
    with mock.patch.object(tf.config, "list_physical_devices", return_value=devices):
        compiled = _train(hvd, "auto", callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert compiled.jit_compile is True
    support.check_equal_on_all_ranks(hvd, compiled.variables)


@on_ranks(2, full=(1,))
def test_a_loop_of_ones_own(hvd):
    def train(jit):
        network = support.model()
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(network.trainable_variables)

        @tf.function(jit_compile=jit, reduce_retracing=True)
        def step(x, y):
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_mean((network(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, network.trainable_variables)
            optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))

        x, y = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
        for rows in (4, 4, 3, 2):  # the last batches are smaller
            step(tf.constant(x[:rows]), tf.constant(y[:rows]))
        support.check_equal_on_all_ranks(hvd, network.variables)
        return support.weights(network)

    np.testing.assert_allclose(train(True), train(False), rtol=1e-5, atol=1e-6)


@on_ranks(2, full=(1,))
def test_an_embedding(hvd):
    def train(jit):
        keras.utils.set_random_seed(3)
        network = keras.Sequential(
            [keras.Input((3,), dtype="int32"), keras.layers.Embedding(7, 4), keras.layers.Flatten()]
        )
        network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=jit)
        x = (np.arange(24).reshape(8, 3) * (1 + hvd.rank())) % 7
        network.fit(x, np.ones([8, 12], "float32"), batch_size=4, verbose=0, shuffle=False)
        support.check_equal_on_all_ranks(hvd, network.variables)
        return support.weights(network)

    np.testing.assert_allclose(train(True), train(False), rtol=1e-5, atol=1e-6)
