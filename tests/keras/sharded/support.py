"""A model and the comparisons of these tests."""

import numpy as np
import tensorflow as tf


def model_and_data(hvd, wrap=None, rows=48, dtype=None, **options):
    import keras

    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((5,)),
        keras.layers.Dense(40, use_bias=False, dtype=dtype),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(1, dtype="float32"),
    ]
    model = keras.Sequential(layers)
    model.compile((wrap or hvd.ShardedOptimizer)(keras.optimizers.Adam(0.01, **options)), "mse")
    x = np.random.default_rng(hvd.rank()).normal(size=(rows, 5)).astype("float32")
    return model, x, x.sum(axis=1)


def fit(hvd, model, x, y, epochs=1, more=()):
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), *more]
    return model.fit(
        x, y, batch_size=8, epochs=epochs, initial_epoch=0, shuffle=False, verbose=0, callbacks=callbacks
    )


def shared(hvd, path):
    return hvd.broadcast_object(str(path))


def arrays(variables):
    return [tf.convert_to_tensor(each).numpy() for each in variables]


def check_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
