"""A small model of Keras 2, data cut into shards, and what one process makes of the whole."""

import hashlib

import numpy as np
import tensorflow as tf

from tests.keras import support as keras_3_support
from tests.keras.support import BATCH, FEATURES, shard, weights
from tests.keras.support import CLASSES as TARGETS

keras = tf.keras
STEPS = 6


def model(seed=7):
    """Dense layers with equal weights on all ranks."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(TARGETS, dtype="float32"),
        ]
    )


def data(size, steps=STEPS):
    """Inputs and targets of the whole job, from which ranks see very different things."""
    return keras_3_support.data(size, "float32", steps)


def fit(network, optimizer, arrays, batch, jit_compile=False, **options):
    """Trains with `fit`, rows in their order."""
    network.compile(optimizer=optimizer, loss="mse", jit_compile=jit_compile, metrics=["mae"])
    return network.fit(*arrays, batch_size=batch, shuffle=False, verbose=0, **options)


def fit_on_all(hvd, optimizer, **options):
    """Trains this rank's shard; returns the model."""
    network = model()
    mine = shard(data(hvd.size()), hvd.rank(), hvd.size())
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), *options.pop("callbacks", [])]
    fit(network, optimizer, mine, BATCH, callbacks=callbacks, **options)
    return network


def check_as_one_process(hvd, make):
    """`fit` on all ranks comes to the weights of one process with the big batch; `make` gives a plain optimizer."""
    network, expected = fit_on_all(hvd, hvd.DistributedOptimizer(make())), model()
    fit(expected, make(), data(hvd.size()), hvd.size() * BATCH)
    assert not np.array_equal(weights(expected), weights(model()))
    np.testing.assert_allclose(weights(network), weights(expected), rtol=1e-3, atol=1e-5)
    check_equal_on_all_ranks(hvd, network.get_weights())


def check_equal_on_all_ranks(hvd, variables):
    """Bit for bit."""
    digest = hashlib.sha256(b"".join(np.asarray(variable).tobytes() for variable in variables)).hexdigest()
    assert len(set(hvd.allgather_object(digest))) == 1
