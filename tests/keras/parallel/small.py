"""A small model and its data, for programs under DataParallel."""

import contextlib

import keras
import numpy as np

X, Y = np.ones([8, 4], "float32"), np.ones([8, 1], "float32")


def small_model(**compiled):
    """A compiled model for `X` and `Y`; options are those of `compile`."""
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    network.compile(**{"optimizer": "sgd", "loss": "mse", **compiled})
    return network


@contextlib.contextmanager
def parallel(hvd, **options):
    """DataParallel, until the end of the block."""
    active = hvd.DataParallel(seed=3, **options)
    try:
        yield active
    finally:
        active.stop()
