"""Ranks whose optimizers or callbacks differ in what no collective would notice."""

import keras
import numpy as np
import pytest

from tests.harness import on_ranks
from tests.keras import support


def train(hvd, optimizer, *callbacks, first=True, **options):
    network = support.model()
    network.compile(hvd.DistributedOptimizer(optimizer, **options), "mse")
    broadcast = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    listed = [*broadcast, *callbacks] if first else [*callbacks, *broadcast]
    network.fit(*mine, batch_size=support.BATCH, shuffle=False, verbose=0, callbacks=listed)
    return network


@on_ranks(2, 3)
def test_options_of_the_distributed_optimizer(hvd):
    wanted = r"different optimizers.*rank 0: average_aggregated_gradients=True; rank 1: average_aggregated_gradients=False"
    with pytest.raises(ValueError, match=wanted):
        train(
            hvd,
            keras.optimizers.SGD(0.1),
            backward_passes_per_step=2,
            average_aggregated_gradients=hvd.rank() == 0,
        )


@pytest.mark.parametrize("wrap", [False, True])
@on_ranks(2, 3)
def test_hyperparameters(hvd, wrap):
    optimizer = keras.optimizers.SGD(0.1, momentum=0.5 + 0.25 * (hvd.rank() == 1))
    if wrap:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    with pytest.raises(ValueError, match=r"rank 0: .*momentum=0\.5; rank 1: .*momentum=0\.75"):
        train(hvd, optimizer)


@on_ranks(2)
def test_learning_rates_and_names_may_differ(hvd):
    """The first rank's rate comes to all; the names count what a rank has made before."""
    name = None if hvd.rank() == 0 else "another"
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    network = train(hvd, keras.optimizers.SGD(0.1 * (1 + hvd.rank()), name=name))
    np.testing.assert_allclose(float(network.optimizer.learning_rate), 0.1)
    train(hvd, keras.optimizers.SGD(rate))


@on_ranks(2, 3)
def test_a_callback_that_one_rank_lacks(hvd):
    more = [hvd.callbacks.MetricAverageCallback()] if hvd.rank() == 0 else []
    with pytest.raises(
        ValueError, match=r"different callbacks of tfddl.*rank 0: 2\. MetricAverage.*rank 1: none of"
    ):
        train(hvd, keras.optimizers.SGD(0.1), *more)


@on_ranks(2)
def test_metrics_read_before_they_are_averaged(hvd):
    average, stop = hvd.callbacks.MetricAverageCallback(), keras.callbacks.EarlyStopping("loss", patience=3)
    with support.logged() as said:
        train(hvd, keras.optimizers.SGD(0.1), average, stop)
        assert not said
        train(hvd, keras.optimizers.SGD(0.1), stop, average)
    assert len(said) == (hvd.rank() == 0)
    assert all("EarlyStopping comes before MetricAverageCallback" in text for text in said)
