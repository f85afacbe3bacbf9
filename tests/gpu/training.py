"""Training on GPUs, against one process with the batch of all ranks. A script, as collectives.py is:

tfddlrun -np 2 python -m tests.gpu.training
"""

import keras
import numpy as np
import tensorflow as tf

import tfddl as hvd
from tests.gpu.rank import compiles, rank, size
from tests.keras import support

tf.config.experimental.enable_tensor_float_32_execution(False)  # it has 10 bits, too few for comparisons
SCALE, BATCH = 2.0**8, support.BATCH


def adam():
    """An optimizer whose steps do not depend on the size of the gradients."""
    return keras.optimizers.Adam(0.01)


def near(network, reference):
    """Whether weights are those of a reference but for rounding, and have the same bits on all ranks."""
    np.testing.assert_allclose(support.weights(network), support.weights(reference), rtol=1e-4, atol=1e-5)
    support.check_equal_on_all_ranks(hvd, network.variables)


def equal_to_one_process(jit):
    """With `fit` and with a custom loop; the reference sees all rows in batches of `size` times as many."""
    rows = support.data(size)
    mine, reference = support.shard(rows, rank, size), support.model()
    support.fit(reference, adam(), rows, size * BATCH, jit_compile=jit)
    assert np.abs(support.weights(reference) - support.weights(support.model())).max() > 5e-3

    network = support.model(seed=7 + rank)  # broadcast makes them equal
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    support.fit(network, hvd.DistributedOptimizer(adam()), mine, BATCH, callbacks=callbacks, jit_compile=jit)
    near(network, reference)

    network = support.model()
    support.loop(network, adam(), mine, BATCH, tape=hvd.DistributedGradientTape, jit=jit)
    near(network, reference)


def overflow_on_one_rank(jit):
    """All ranks skip the step in which the gradients of the last rank overflow, and halve the scale."""
    network = support.model(keras.DTypePolicy("mixed_float16"))
    scaled = keras.optimizers.LossScaleOptimizer(adam(), initial_scale=SCALE)
    x, y = support.shard(support.data(size), rank, size)
    if rank == size - 1:
        x[0] = np.inf
    support.fit(network, hvd.DistributedOptimizer(scaled), (x, y), BATCH, jit_compile=jit)
    assert np.isfinite(support.weights(network)).all()
    assert float(tf.convert_to_tensor(network.optimizer.dynamic_scale)) == SCALE / 2
    support.check_equal_on_all_ranks(hvd, network.variables + network.optimizer.variables)


def convolutions():
    """With Keras' default, which is jit_compile=True on a GPU; batch normalization, whose averages differ by rank."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    network = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(8, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(hvd.DistributedOptimizer(adam()), loss, jit_compile="auto" if compiles else False)
    generator = np.random.default_rng(rank)
    x, y = generator.normal(size=(64, 16, 16, 3)).astype("float32"), generator.integers(0, 4, 64)
    network.fit(x, y, batch_size=16, epochs=2, verbose=0)
    support.check_equal_on_all_ranks(hvd, network.trainable_variables)


for compiled in (False, True) if compiles else (False,):
    equal_to_one_process(compiled)
    overflow_on_one_rank(compiled)
convolutions()
print("rank", rank, "checked all")
