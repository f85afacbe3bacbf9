"""The central promise: N ranks compute what one process does with the N-times batch."""

import keras
import numpy as np
import pytest

from tests.harness import on_ranks
from tests.keras import support

WAYS = ("fit", "fit_eagerly", "loop", "loop_eagerly", "tape", "tape_eagerly")
OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "AdamW_EMA": lambda: keras.optimizers.AdamW(
        0.01, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=2
    ),
    "clipnorm": lambda: keras.optimizers.SGD(0.05, clipnorm=0.3),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.3),
    "clipvalue": lambda: keras.optimizers.SGD(0.05, clipvalue=0.1),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "loss_scale_factor": lambda: keras.optimizers.SGD(0.05, loss_scale_factor=8.0),
}


def train(hvd, way, network, make_optimizer, arrays, batch):
    """Trains one shard in one of the ways."""
    eager = way.endswith("eagerly")
    optimizer = make_optimizer()
    if way.startswith("tape"):
        support.loop(network, optimizer, arrays, batch, tape=hvd.DistributedGradientTape, eager=eager)
    elif way.startswith("loop"):
        support.loop(network, hvd.DistributedOptimizer(optimizer), arrays, batch, eager=eager)
    else:
        support.fit(network, hvd.DistributedOptimizer(optimizer), arrays, batch, run_eagerly=eager)
    return optimizer


def compare(hvd, way, make_optimizer, dtype, rtol, atol=0.0):
    size = hvd.size()
    arrays, network = support.data(size, dtype), support.model(dtype)
    start = support.weights(network)
    optimizer = train(
        hvd, way, network, make_optimizer, support.shard(arrays, hvd.rank(), size), support.BATCH
    )
    if hvd.rank() == 0:
        whole, plain = support.model(dtype), make_optimizer()
        plain_train = support.fit if way.startswith("fit") else support.loop
        plain_train(whole, plain, arrays, support.BATCH * size)
        assert np.abs(support.weights(whole) - start).max() > 1e-3
        np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=rtol, atol=atol)
        assert optimizer.iterations.numpy() == plain.iterations.numpy() == support.STEPS
    support.check_equal_on_all_ranks(hvd, [*network.variables, *optimizer.variables])


@pytest.mark.parametrize("way", WAYS)
@on_ranks(2, full=(1, 3))
def test_sgd_in_float64(hvd, way):
    compare(hvd, way, OPTIMIZERS["SGD"], "float64", rtol=1e-10)


@pytest.mark.parametrize("way", ["fit", "loop", "tape"])
@on_ranks(2, 3, full=(1,))
def test_adam_in_float32(hvd, way):
    compare(hvd, way, OPTIMIZERS["Adam"], "float32", rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("optimizer", sorted(set(OPTIMIZERS) - {"SGD", "Adam"}))
@on_ranks(2)
def test_what_follows_the_reduction(hvd, optimizer):
    """Clipping, decay and averages see the averaged gradient."""
    compare(hvd, "fit", OPTIMIZERS[optimizer], "float64", rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@on_ranks(2)
def test_the_comparison_notices_a_missing_reduction_and_a_sum(hvd):
    """Guards the tests above: without the reduction, or with another, they would fail."""
    arrays = support.data(2, "float64")
    mine = support.shard(arrays, hvd.rank(), 2)
    whole = support.model("float64")
    support.fit(whole, keras.optimizers.SGD(0.05), arrays, 2 * support.BATCH)
    for optimizer in (
        keras.optimizers.SGD(0.05),
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), op=hvd.Sum),
    ):
        network = support.model("float64")
        support.fit(network, optimizer, mine, support.BATCH)
        assert np.abs(support.weights(network) - support.weights(whole)).max() > 1e-3


@on_ranks(2)
def test_sum_is_average_with_the_learning_rate_times_n(hvd):
    mine = support.shard(support.data(2, "float64"), hvd.rank(), 2)
    results = []
    for op, rate in ((hvd.Sum, 0.02), (hvd.Average, 0.04)):
        network = support.model("float64")
        support.fit(network, hvd.DistributedOptimizer(keras.optimizers.SGD(rate), op=op), mine, support.BATCH)
        results.append(support.weights(network))
    np.testing.assert_allclose(*results, rtol=1e-10)
