"""What rank 0 alone has restored or made in legacy optimizers, and in those inside them, comes to all."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras2 import support

keras = tf.keras
legacy = keras.optimizers.legacy


def addons():
    return pytest.importorskip("tensorflow_addons").optimizers


def multi(network):
    members = [(legacy.Adam(0.05), network.layers[0]), (legacy.SGD(0.05, momentum=0.9), network.layers[1])]
    return addons().MultiOptimizer(members)


OPTIMIZERS = {
    "SGD": lambda network: legacy.SGD(0.05, momentum=0.9),
    "Adam": lambda network: legacy.Adam(0.05),
    "Lookahead": lambda network: addons().Lookahead(legacy.Adam(0.05), sync_period=4),
    "MovingAverage": lambda network: addons().MovingAverage(legacy.SGD(0.05, momentum=0.9)),
    "SWA": lambda network: addons().SWA(legacy.Adam(0.05), start_averaging=1, average_period=2),
    "MultiOptimizer": multi,
}


def square_layers():
    """A model in a model, whose variables a checkpoint finds in another order, of one shape each."""
    keras.utils.set_random_seed(3)

    def dense():
        return keras.layers.Dense(support.FEATURES, activation="tanh", use_bias=False)

    inner = keras.Sequential([keras.Input((support.FEATURES,)), dense(), dense()])
    last = keras.layers.Dense(support.TARGETS, use_bias=False)
    return keras.Sequential([keras.Input((support.FEATURES,)), inner, dense(), dense(), last])


def compiled(hvd, make, name):
    network = make()
    network.compile(hvd.DistributedOptimizer(OPTIMIZERS[name](network)), "mse")
    return network


def fit(hvd, network):
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    network.fit(*mine, batch_size=support.BATCH, shuffle=False, verbose=0, callbacks=callbacks)


def parts(network):
    """What a checkpoint has to name: a MultiOptimizer does not track its members."""
    specs = getattr(network.optimizer, "optimizer_specs", [])
    members = {f"member_{number}": spec["optimizer"] for number, spec in enumerate(specs)}
    return tf.train.Checkpoint(model=network, optimizer=network.optimizer, **members)


@pytest.mark.parametrize("make", [support.model, square_layers])
@pytest.mark.parametrize("name", OPTIMIZERS)
@on_ranks(1, 2, 3)
def test_a_checkpoint_that_rank_0_alone_restores(hvd, name, make):
    """Goes on as the job that was not interrupted."""
    network = compiled(hvd, make, name)
    fit(hvd, network)
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0)
    if hvd.rank() == 0:
        parts(network).save(f"{folder}/checkpoint")
    hvd.barrier()
    resumed = compiled(hvd, make, name)
    if hvd.rank() == 0:
        parts(resumed).restore(tf.train.latest_checkpoint(folder))
    fit(hvd, resumed)
    fit(hvd, network)
    support.check_equal_on_all_ranks(hvd, resumed.get_weights())
    np.testing.assert_allclose(support.weights(resumed), support.weights(network), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
@on_ranks(1, 2)
def test_iterations_that_rank_0_alone_reads(hvd, name):
    network = compiled(hvd, support.model, name)
    if hvd.rank() == 0:
        assert int(network.optimizer.iterations) == 0
    fit(hvd, network)
    support.check_equal_on_all_ranks(hvd, network.get_weights())
    assert int(network.optimizer.iterations) == support.STEPS


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", ["new", "legacy"])
@on_ranks(1, 2)
def test_a_learning_rate_that_rank_0_alone_has_reduced(hvd, kind, scaled):
    """It goes on with the rate of the training that a file interrupted; the others were made with another."""
    sgd = {"new": keras.optimizers, "legacy": legacy}[kind].SGD
    optimizer = hvd.DistributedOptimizer(sgd(0.1 / (1 + hvd.rank()), momentum=0.9))
    network = support.model()
    network.compile(keras.mixed_precision.LossScaleOptimizer(optimizer) if scaled else optimizer, "mse")
    fit(hvd, network)
    assert float(network.optimizer.learning_rate) == np.float32(0.1)
    support.check_equal_on_all_ranks(hvd, network.get_weights())


@on_ranks(1, 2)
def test_a_wrapped_optimizer_saves_as_h5(hvd):
    """HDF5 takes no two variables of one name, so that the one inside must not have made iterations of its own."""
    network = compiled(hvd, support.model, "Lookahead")
    fit(hvd, network)
    with tempfile.TemporaryDirectory() as folder:
        network.save(f"{folder}/model.h5")
        loaded = keras.models.load_model(f"{folder}/model.h5")
    np.testing.assert_array_equal(support.weights(loaded), support.weights(network))
