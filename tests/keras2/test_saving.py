"""Models trained by a distributed optimizer of Keras 2 load where tfddl is not installed."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras2 import support

keras = tf.keras
PASSES = 3
LOAD = """
import sys
sys.modules["tfddl"] = None  # importing it is an error
import numpy as np
import tensorflow as tf
model = tf.keras.models.load_model(sys.argv[1])
print(type(model.optimizer).__module__, type(model.optimizer).__name__, int(model.optimizer.iterations))
np.save(sys.argv[2], np.concatenate([value.ravel() for value in model.get_weights()]))
"""


@pytest.mark.parametrize("form", ["model.keras", "model.h5", "model_tf"])
@pytest.mark.parametrize("kind", ["new", "legacy"])
@on_ranks(2)
def test_loads_without_tfddl(hvd, tmp_path, kind, form):
    make = {"new": keras.optimizers, "legacy": keras.optimizers.legacy}[kind].Adam
    network = support.fit_on_all(hvd, hvd.DistributedOptimizer(make(0.01)))
    if hvd.rank() == 0:
        network.save(tmp_path / form)
        out = tmp_path / "weights.npy"
        done = subprocess.run(
            [sys.executable, "-c", LOAD, str(tmp_path / form), str(out)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        module, name, iterations = done.stdout.split()[-3:]
        assert ("keras" in module, name) == (True, "Adam")
        if form == "model.h5":  # the others forget it with plain optimizers, too
            assert int(iterations) == support.STEPS
        np.testing.assert_array_equal(np.load(out), support.weights(network))
    hvd.barrier()


@on_ranks(2)
def test_goes_on_after_loading(hvd, tmp_path):
    """Two epochs in one go, or with a file in between: the same bits."""
    straight = support.fit_on_all(hvd, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), epochs=2)
    network = support.fit_on_all(hvd, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    path = str(tmp_path / f"model{hvd.rank()}.h5")
    network.save(path)
    loaded = hvd.load_model(path)
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    loaded.fit(
        *mine,
        batch_size=support.BATCH,
        shuffle=False,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    np.testing.assert_array_equal(support.weights(loaded), support.weights(straight))


@pytest.mark.parametrize("form", ["keras", "h5"])
@pytest.mark.parametrize("kind", ["new", "legacy"])
@on_ranks(2)
def test_load_model(hvd, tmp_path, kind, form):
    """`hvd.load_model` gives a distributed optimizer; from an .h5 file with its slots."""
    make = {"new": keras.optimizers, "legacy": keras.optimizers.legacy}[kind].Adam
    network = support.fit_on_all(hvd, hvd.DistributedOptimizer(make(0.01)))
    path = str(tmp_path / f"model{hvd.rank()}.{form}")
    network.save(path)
    loaded = hvd.load_model(path)
    np.testing.assert_array_equal(support.weights(loaded), support.weights(network))
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    for each in (network, loaded) if form == "h5" else (loaded,):
        each.fit(*mine, batch_size=support.BATCH, shuffle=False, verbose=0, callbacks=callbacks)
    if form == "h5":
        np.testing.assert_array_equal(support.weights(loaded), support.weights(network))
    support.check_equal_on_all_ranks(hvd, loaded.variables)


@pytest.mark.parametrize("form", ["keras", "h5", "checkpoint"])
@pytest.mark.parametrize("kind", ["new", "legacy"])
@on_ranks(1, 2, 3)
def test_a_file_from_the_middle_of_an_accumulation(hvd, tmp_path, kind, form):
    """What was added up since the last update is not in it: the next N batches make the next update."""
    make = {"new": keras.optimizers, "legacy": keras.optimizers.legacy}[kind].SGD
    passes = {"backward_passes_per_step": PASSES, "average_aggregated_gradients": True}

    def network():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(hvd.DistributedOptimizer(make(1.0), **passes), "mae")
        model.set_weights([np.zeros((1, 1))])
        return model

    def train(model, *slopes):
        """Each batch of a rank moves the weight up by `slope * (rank + 1) / PASSES`, far below its target."""
        first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        x = np.array(slopes, "float32")[:, None] * (hvd.rank() + 1)
        model.fit(x, np.full_like(x, 1e6), batch_size=1, shuffle=False, verbose=0, callbacks=[first])

    saved = network()
    train(saved, 1, 2, 4, 100)
    path = str(tmp_path / f"model{hvd.rank()}.{form}")
    if form == "checkpoint":
        loaded = network()
        prefix = tf.train.Checkpoint(model=saved, optimizer=saved.optimizer).save(path)
        tf.train.Checkpoint(model=loaded, optimizer=loaded.optimizer).restore(prefix)
    else:
        saved.save(path)
        loaded = hvd.load_model(path, **passes)
    mean = (hvd.size() + 1) / 2
    np.testing.assert_allclose(loaded.get_weights()[0], [[7 * mean / PASSES]], rtol=1e-6)
    train(loaded, 8, 16)
    np.testing.assert_allclose(loaded.get_weights()[0], [[7 * mean / PASSES]], rtol=1e-6)
    train(loaded, 32)
    np.testing.assert_allclose(loaded.get_weights()[0], [[(7 + 56) * mean / PASSES]], rtol=1e-6)
    support.check_equal_on_all_ranks(hvd, loaded.variables)
