"""What differs by rank in Keras 2 without a collective that would notice."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks

keras = tf.keras
KINDS = {"new": keras.optimizers.SGD, "legacy": keras.optimizers.legacy.SGD}


@pytest.mark.parametrize("how", ["plain", "loss_scale", "passes", "loss_scale_passes"])
@pytest.mark.parametrize("kind", KINDS)
@on_ranks(1, 2, 3)
def test_gradients_of_different_variables_of_one_shape(hvd, kind, how):
    a, b = tf.Variable([1.0]), tf.Variable([1.0])
    passes = 2 if "passes" in how else 1
    optimizer = hvd.DistributedOptimizer(KINDS[kind](0.5), backward_passes_per_step=passes)
    if "loss_scale" in how:
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    for _ in range(passes):
        optimizer.apply_gradients([(tf.constant([1.0]), a), (None, b)])
    np.testing.assert_allclose([a.numpy(), b.numpy()], [[1 - 0.5 * passes], [1]])

    def train():
        one = tf.constant([1.0])
        for _ in range(passes):
            pairs = [(None, a), (one, b)] if hvd.rank() == 1 else [(one, a), (None, b)]
            optimizer.apply_gradients(pairs)

    if hvd.size() > 1:
        with pytest.raises(
            tf.errors.FailedPreconditionError, match=r"gradients \[0\] of 2.*gradients \[1\] of 2"
        ):
            train()
