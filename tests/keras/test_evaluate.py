"""evaluate, predict and validation of a model that trains on several ranks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow
from tests.keras import support
from tfddl import _compat


def compiled(hvd, optimizer=None, **options):
    network = support.model()
    optimizer = hvd.DistributedOptimizer(optimizer or keras.optimizers.Adam(0.01))
    network.compile(optimizer, "mse", metrics=["mae"], **options)
    return network


def fit(hvd, network, steps=support.STEPS, **options):
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    mine = support.shard(support.data(hvd.size(), steps=steps), hvd.rank(), hvd.size())
    return network.fit(
        *mine, batch_size=support.BATCH, shuffle=False, verbose=0, callbacks=callbacks, **options
    ).history


@pytest.mark.parametrize("executed", [slow(1), 4])
@on_ranks(2, full=(1, 3))
def test_evaluate_and_predict(hvd, executed):
    """Each rank's own data; the documented mean over ranks is the whole's metric."""
    network = compiled(hvd, steps_per_execution=executed)
    fit(hvd, network)
    arrays = support.data(hvd.size())
    whole = network.evaluate(*arrays, verbose=0, return_dict=True)
    assert network.predict(arrays[0], verbose=0).shape == arrays[1].shape
    mine = support.shard(arrays, hvd.rank(), hvd.size())
    metrics = network.evaluate(*mine, batch_size=support.BATCH, verbose=0, return_dict=True)
    averaged = {key: float(hvd.allreduce(tf.constant(value), name=key)) for key, value in metrics.items()}
    assert hvd.size() == 1 or abs(metrics["loss"] - whole["loss"]) > 1e-2
    for key, value in whole.items():
        np.testing.assert_allclose(averaged[key], value, rtol=1e-5)
    mine_predicted = network.predict(mine[0], batch_size=support.BATCH, verbose=0)
    together = hvd.allgather(tf.constant(mine_predicted), name="predicted").numpy()
    ordered = (
        together.reshape(hvd.size(), -1, support.CLASSES).transpose(1, 0, 2).reshape(-1, support.CLASSES)
    )
    np.testing.assert_allclose(ordered, network.predict(arrays[0], verbose=0), rtol=1e-5, atol=1e-6)


@on_ranks(2, full=(1, 3))
def test_evaluate_of_unequal_shards(hvd):
    """A mean weighted by the number of rows, as documented."""
    network = compiled(hvd)
    x, y = support.data(3)
    parts = np.array_split(np.arange(len(x)), np.cumsum([7, 9, 5])[: hvd.size() - 1])
    mine = parts[hvd.rank()]
    metrics = network.evaluate(x[mine], y[mine], verbose=0, return_dict=True)
    rows = hvd.allreduce(tf.constant(float(len(mine)), tf.float64), op=hvd.Sum, name="rows")
    for key, value in network.evaluate(x, y, verbose=0, return_dict=True).items():
        weighted = hvd.allreduce(tf.constant(metrics[key] * len(mine), tf.float64), op=hvd.Sum, name=key)
        np.testing.assert_allclose(float(weighted / rows), value, rtol=1e-5)


@on_ranks(2, full=(1, 3))
def test_validation_is_averaged(hvd):
    arrays = support.data(hvd.size(), steps=2)
    network = compiled(hvd)
    history = fit(hvd, network, epochs=2, validation_data=support.shard(arrays, hvd.rank(), hvd.size()))
    expected = network.evaluate(*arrays, verbose=0, return_dict=True)
    np.testing.assert_allclose(history["val_loss"][-1], expected["loss"], rtol=1e-5)
    np.testing.assert_allclose(history["val_mae"][-1], expected["mae"], rtol=1e-5)


@pytest.mark.parametrize("executed", [slow(2), 4])
@on_ranks(2, full=(1, 3))
def test_several_steps_per_execution(hvd, executed):
    """Also where they do not divide the number of batches."""
    one, several = compiled(hvd), compiled(hvd, steps_per_execution=executed)
    histories = [fit(hvd, network, epochs=2) for network in (one, several)]
    np.testing.assert_allclose(support.weights(several), support.weights(one), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(histories[1]["mae"], histories[0]["mae"], rtol=1e-5)
    assert several.optimizer.iterations.numpy() == 2 * support.STEPS
    support.check_equal_on_all_ranks(hvd, [*several.variables, *several.optimizer.variables])


SCHEDULES = {
    "CosineDecay": lambda kind: kind.CosineDecay(0.01, 8, warmup_target=0.1, warmup_steps=3),
    "PiecewiseConstantDecay": lambda kind: kind.PiecewiseConstantDecay([3, 6], [0.1, 0.05, 0.01]),
    "PolynomialDecay": lambda kind: kind.PolynomialDecay(0.1, 8),
}


@pytest.mark.parametrize("schedule", ["CosineDecay", slow("PiecewiseConstantDecay"), slow("PolynomialDecay")])
@on_ranks(2, full=(1, 3))
def test_schedules_in_the_optimizer(hvd, schedule):
    """The same rates on all ranks, and those of one process with the N-times batch."""
    rates = SCHEDULES[schedule](keras.optimizers.schedules)
    network, whole = compiled(hvd, keras.optimizers.SGD(rates, momentum=0.9)), support.model()
    fit(hvd, network, epochs=2)
    plain = keras.optimizers.SGD(rates, momentum=0.9)
    support.fit(whole, plain, support.data(hvd.size()), support.BATCH * hvd.size(), epochs=2)
    now = hvd.allgather(tf.reshape(network.optimizer.learning_rate, [1]), name="rates").numpy()
    assert len(set(now)) == 1 and now[0] == _compat.learning_rate(plain) < 0.1
    np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-4, atol=1e-6)
