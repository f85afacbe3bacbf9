"""Models to train, for images of 32 x 32 x 3 in 10 classes. `build` takes the names of `gradient_sets.MODELS`.

`build` imports Keras, and `different_weights` imports MPI.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tfddl import _compat

IMAGE = (32, 32, 3)
CLASSES = 10


def build(name: str) -> Any:
    """A `keras.Model` from images to logits, the same weights on all ranks."""
    keras = _compat.keras()
    keras.utils.set_random_seed(1)
    images = keras.Input(IMAGE)
    return keras.Model(images, _BODIES[name](keras.layers, images))


def batch(rank: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Random images, [size, 32, 32, 3] float32, and labels, [size] int64, that differ by rank."""
    generator = np.random.default_rng(rank)
    return generator.standard_normal((size, *IMAGE), dtype="float32"), generator.integers(0, CLASSES, size)


def different_weights(model: Any) -> int:
    """The number of trained weights, over all ranks, whose bits differ from those of rank 0. All ranks call it.

    The moving averages of batch normalization may differ, so they do not count.
    """
    from mpi4py import MPI  # initializes MPI, so not at the top of the file

    weights = np.concatenate([np.asarray(v).ravel() for v in model.trainable_variables]).view("int32")
    different = np.count_nonzero(weights != MPI.COMM_WORLD.bcast(weights))
    return int(MPI.COMM_WORLD.allreduce(different, MPI.SUM))


def _resnet20(layers: Any, images: Any) -> Any:
    """He et al., "Deep Residual Learning", section 4.2, with n = 3."""

    def convolve(x: Any, filters: int, stride: int = 1) -> Any:
        x = layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    x = layers.ReLU()(convolve(images, 16))
    for filters in (16, 32, 64):
        for block in range(3):
            stride = 2 if filters > 16 and block == 0 else 1
            shortcut = x if stride == 1 else layers.Conv2D(filters, 1, strides=2, use_bias=False)(x)
            y = layers.ReLU()(convolve(x, filters, stride))
            x = layers.ReLU()(layers.Add()([convolve(y, filters), shortcut]))
    return layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))


def _cnn(layers: Any, images: Any) -> Any:
    """Two convolutions. A dense layer has nearly all weights."""
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(images)
    x = layers.Conv2D(64, 3, padding="same", activation="relu")(x)
    x = layers.Flatten()(layers.MaxPooling2D()(x))
    return layers.Dense(CLASSES)(layers.Dense(256, activation="relu")(x))


def _vgg(layers: Any, images: Any) -> Any:
    """VGG-11 (Simonyan and Zisserman, table 1, column A) with dense layers of 2048 instead of 4096."""
    x = images
    for width, depth in ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)):
        for _ in range(depth):
            x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dense(2048, activation="relu")(x)
    return layers.Dense(CLASSES)(x)


_BODIES: dict[str, Callable[[Any, Any], Any]] = {"resnet20": _resnet20, "cnn": _cnn, "vgg": _vgg}
