"""load_model: a distributed optimizer with its slots, and training that goes on bit for bit."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow
from tests.keras import support

EPOCHS = 2


class Own(keras.optimizers.Adam):
    """A class that a file names and Keras does not know."""


OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "momentum": lambda: keras.optimizers.SGD(0.02, momentum=0.9, use_ema=True, ema_overwrite_frequency=3),
    "own": lambda: Own(0.01),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=3
    ),
}


def fit(hvd, network, epochs=EPOCHS):
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    network.fit(*mine, batch_size=support.BATCH, shuffle=False, verbose=0, epochs=epochs, callbacks=callbacks)


def state(network):
    variables = [*network.variables, *network.optimizer.variables]
    return [variable.numpy() for variable in variables]


def save(hvd, network, path):
    """On rank 0; the others wait for the file."""
    if hvd.rank() == 0:
        network.save(path)
    hvd.barrier()


@pytest.mark.parametrize("suffix", ["keras", "h5"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@on_ranks(2, full=(1, 3))
def test_goes_on_bit_for_bit(hvd, tmp_path, optimizer, suffix):
    path = str(tmp_path / f"model.{suffix}")
    network = support.model()
    # A text would do in .keras; .h5 wants a class.
    loss = keras.losses.MeanSquaredError()
    network.compile(hvd.DistributedOptimizer(OPTIMIZERS[optimizer]()), loss)
    fit(hvd, network)
    save(hvd, network, path)
    fit(hvd, network)
    loaded = hvd.load_model(path, custom_optimizers=[Own])
    assert type(loaded.optimizer).__name__ == type(network.optimizer).__name__
    fit(hvd, loaded)
    for value, other in zip(state(loaded), state(network), strict=True):
        np.testing.assert_array_equal(value, other)
    support.check_equal_on_all_ranks(hvd, [*loaded.variables, *loaded.optimizer.variables])


@pytest.mark.parametrize("optimizer", [slow("Adam"), "loss scale"])
@pytest.mark.parametrize("suffix", ["keras", "h5"])
@on_ranks(2)
def test_saved_before_training(hvd, tmp_path, optimizer, suffix):
    """A file whose optimizer has no slots yet."""
    path = str(tmp_path / f"model.{suffix}")
    network = support.model()
    network.compile(hvd.DistributedOptimizer(OPTIMIZERS[optimizer]()), keras.losses.MeanSquaredError())
    save(hvd, network, path)
    loaded = hvd.load_model(path)
    fit(hvd, network)
    fit(hvd, loaded)
    for value, other in zip(state(loaded), state(network), strict=True):
        np.testing.assert_array_equal(value, other)


@pytest.mark.slow
@on_ranks(2)
def test_without_slots_it_would_not(hvd, tmp_path):
    """Guards the test above: weights alone are not enough."""
    network, other = support.model(), support.model()
    network.compile(hvd.DistributedOptimizer(OPTIMIZERS["Adam"]()), "mse")
    fit(hvd, network)
    other.set_weights(network.get_weights())
    other.compile(hvd.DistributedOptimizer(OPTIMIZERS["Adam"]()), "mse")
    fit(hvd, network)
    fit(hvd, other)
    assert np.abs(support.weights(network) - support.weights(other)).max() > 1e-4


@on_ranks(2)
def test_a_model_that_keras_has_loaded_is_refused(hvd, tmp_path):
    path = str(tmp_path / "model.keras")
    network = support.model()
    network.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse")
    save(hvd, network, path)
    with pytest.raises(ValueError, match=r"hvd\.load_model\(path\) instead of keras\.models\.load_model"):
        fit(hvd, keras.models.load_model(path))


@on_ranks(2)
def test_options(hvd, tmp_path):
    """The number of passes is in the file, what becomes of them is not."""
    path = str(tmp_path / "model.keras")
    options = {"op": hvd.Sum, "backward_passes_per_step": 2, "compression": hvd.Compression.bf16}
    network = support.model()
    network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), **options), "mse")
    fit(hvd, network)
    save(hvd, network, path)
    loaded = hvd.load_model(path, **options)
    other = keras.models.load_model(path)
    hvd.DistributedOptimizer(other.optimizer, **{**options, "average_aggregated_gradients": True})
    for each in (network, loaded, other):
        fit(hvd, each, 1)
    np.testing.assert_array_equal(support.weights(loaded), support.weights(network))
    assert np.abs(support.weights(other) - support.weights(network)).max() > 1e-4
    with pytest.raises(ValueError, match=r"Received: backward_passes_per_step=3, gradient_accumulation_ste"):
        hvd.load_model(path, backward_passes_per_step=3)


@on_ranks(1)
def test_a_model_without_an_optimizer_and_refusals(hvd, tmp_path):
    path = str(tmp_path / "model.keras")
    support.model().save(path)
    assert getattr(hvd.load_model(path), "optimizer", None) is None
    for wrong in ("Own", [Own(0.1)], keras.layers.Dense):
        with pytest.raises(TypeError, match=r"a list of classes.*Received: custom_optimizers="):
            hvd.load_model(path, custom_optimizers=wrong)
    with pytest.raises(TypeError, match=r"Received: compression=3"):
        network = support.model()
        network.compile(keras.optimizers.SGD(), "mse")
        network.save(path)
        hvd.load_model(path, compression=3)


@on_ranks(2, full=(1,))
def test_custom_objects(hvd, tmp_path):
    def doubled(y, prediction):
        return 2 * tf.reduce_mean(tf.square(y - prediction), axis=-1)

    path = str(tmp_path / "model.keras")
    network = support.model()
    network.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), doubled)
    fit(hvd, network)
    save(hvd, network, path)
    loaded = hvd.load_model(path, custom_objects={"doubled": doubled})
    for each in (network, loaded):
        fit(hvd, each)
    np.testing.assert_array_equal(support.weights(loaded), support.weights(network))


@on_ranks(1)
def test_classes_of_tfddl(hvd, tmp_path):
    """A program that names neither the layer nor the optimizer loads a model with both."""
    path = str(tmp_path / "model.keras")
    network = keras.Sequential([keras.Input((3,)), hvd.SyncBatchNormalization()])
    network.compile(hvd.DistributedOptimizer(hvd.optimizers.LARS(0.1)), "mse")
    network.save(path)
    load = "import sys, tfddl; tfddl.init(); print(type(tfddl.load_model(sys.argv[1]).optimizer).__name__)"
    done = subprocess.run([sys.executable, "-c", load, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.split()[-1] == "LARS", done.stderr
