"""Buckets start while the backward pass still runs."""

import os
import time
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.harness.flight import operations

LAYERS, WIDTH = 4, 300
ONE_LAYER = "0.4"
"""Megabytes for one bucket a layer: a matrix has 0.34."""

PATIENCE = 20.0
"""Seconds that the other layers' buckets get to be submitted, on a busy machine."""

begins: list[int] = [0]
"""When the step began, in microseconds of the flight record's clock."""

early: list[list[int]] = []
"""The buckets that had been submitted just before the gradient of the first layer existed."""


@tf.custom_gradient
def slow_backward(x):
    """The identity, whose gradient comes after all other buckets, or late; it looks at the flight record at the end."""

    def wait(gradient):
        end = time.monotonic() + PATIENCE
        while len(submitted(begins[-1])) < LAYERS - 1 and time.monotonic() < end:
            time.sleep(0.05)
        early.append(submitted(begins[-1]))
        return gradient

    def backward(gradient):
        slow = tf.py_function(wait, [gradient], gradient.dtype)
        slow.set_shape(gradient.shape)
        return slow

    return tf.identity(x), backward


@pytest.mark.parametrize("way", ["optimizer", "tape"])
@on_ranks(2)
def test_the_first_bucket_is_submitted_before_the_last_gradient_exists(hvd, way):
    matrices = [tf.Variable(tf.eye(WIDTH) * 0.5) for _ in range(LAYERS)]
    optimizer = keras.optimizers.SGD(0.1)
    wrap = (lambda tape: tape) if way == "optimizer" else hvd.DistributedGradientTape
    if way == "optimizer":
        hvd.DistributedOptimizer(optimizer, name="overlap")
    optimizer.build(matrices)

    @tf.function
    def step(x):
        with wrap(tf.GradientTape()) as tape:
            # Behind the first matrix in the forward pass, so before its gradient in the backward pass.
            y = slow_backward(x @ matrices[0])
            for matrix in matrices[1:]:
                y = tf.tanh(y @ matrix)
            y = tf.reduce_sum(y)
        optimizer.apply_gradients(zip(tape.gradient(y, matrices), matrices, strict=True))

    x = tf.constant(np.random.default_rng(hvd.rank()).normal(size=(8, WIDTH)), tf.float32)
    with mock.patch.dict(os.environ, TFDDL_BUCKET_MB=ONE_LAYER):
        step(x)
    begins.append(time.monotonic_ns() // 1000)
    step(x)
    assert sorted(early[-1]) == list(range(LAYERS - 1))
    assert sorted(submitted(begins[-1])) == list(range(LAYERS))


def submitted(begin):
    """Numbers of the buckets submitted since `begin`. TensorFlow may start two that are ready in either order."""
    names = [each.name for each in operations() if each.submitted_us > begin]
    return [int(name.rsplit("#", 1)[1]) for name in names if "#" in name]
