"""What differs by rank in Keras 2 without a collective that would notice."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras2 import support

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


@pytest.mark.parametrize("kind", KINDS)
@on_ranks(1, 2, 3)
def test_passes_of_two_networks_in_turn(hvd, kind):
    """One optimizer for both: each gets its update in the second of its own passes."""
    weights = [tf.Variable(1.0), tf.Variable(1.0)]
    optimizer = KINDS[kind](0.1)
    if kind == "new":
        optimizer.build(weights)
    optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
    for done in range(4):
        for weight in weights:
            optimizer.apply_gradients([(tf.constant(hvd.rank() + 1.0), weight)])
            expected = 1 - 0.1 * (hvd.size() + 1) / 2 * 2 * ((done + 1) // 2)
            np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-6)


def fit(hvd, optimizer, network=None):
    network = support.model() if network is None else network
    network.compile(hvd.DistributedOptimizer(optimizer), "mse")
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    network.fit(*mine, batch_size=support.BATCH, shuffle=False, verbose=0, callbacks=[first])


@pytest.mark.parametrize("kind", KINDS)
@on_ranks(2, 3)
def test_other_schedules(hvd, kind):
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5 if hvd.rank() == 1 else 0.75)
    wanted = (
        r"rank 0: learning_rate\.config\.decay_rate=0\.75; rank 1: learning_rate\.config\.decay_rate=0\.5"
    )
    with pytest.raises(ValueError, match=wanted):
        fit(hvd, KINDS[kind](rate))


@on_ranks(2)
def test_hyperparameters_that_one_rank_has_read(hvd):
    """They are float32 variables there, and numbers of Python elsewhere."""
    optimizer = keras.optimizers.legacy.Adam(0.05, beta_1=0.8)
    if hvd.rank() == 0:
        optimizer._create_hypers()
    fit(hvd, optimizer)


@on_ranks(2)
def test_members_of_a_multi_optimizer(hvd):
    addons = pytest.importorskip("tensorflow_addons")
    legacy = keras.optimizers.legacy
    for rate, momentum in ((0.05, 0.5 + 0.25 * hvd.rank()), (0.05 * (1 + hvd.rank()), 0.5)):
        network = support.model()
        first, second = network.layers
        members = [(legacy.SGD(rate), first), (legacy.SGD(0.05, momentum=momentum), second)]
        with pytest.raises(ValueError, match=r"different optimizers.*optimizer_specs\[[01]\]\.optimizer\."):
            fit(hvd, addons.optimizers.MultiOptimizer(members), network)
    network = support.model()
    first, second = network.layers
    members = [(legacy.SGD(0.05), first), (legacy.Adam(0.05), second)]
    fit(hvd, addons.optimizers.MultiOptimizer(members), network)
