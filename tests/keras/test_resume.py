"""Checkpoints on rank 0 only, and training that goes on from them bit for bit."""

import os

import keras
import numpy as np
import pytest

from tests.harness import on_ranks, slow
from tests.keras import support

EPOCHS, CUT = 4, 2
OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "momentum_accumulating": lambda: keras.optimizers.SGD(
        0.02, momentum=0.9, gradient_accumulation_steps=support.STEPS
    ),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 15), momentum=0.9),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.AdamW(0.01, use_ema=True), initial_scale=8.0, dynamic_growth_steps=3
    ),
}


class Interrupt(keras.callbacks.Callback):
    """Ends the process's training as a lost job would."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == CUT - 1:
            raise KeyboardInterrupt


def compiled(hvd, optimizer, seed=7):
    network = support.model(seed=seed)
    network.compile(hvd.DistributedOptimizer(optimizer), "mse")
    return network


def fit(hvd, network, *callbacks, **options):
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    backup = [one for one in callbacks if isinstance(one, keras.callbacks.BackupAndRestore)]
    others = [one for one in callbacks if one not in backup]
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    options = {"epochs": EPOCHS, **options}
    return network.fit(
        *mine,
        batch_size=support.BATCH,
        shuffle=False,
        verbose=0,
        callbacks=[*backup, first, *others],
        **options,
    )


def state(network):
    """The bits of all variables, those of the optimizer included; what accumulates is each rank's own."""
    variables = [*network.variables, *network.optimizer.variables]
    return [v.numpy() for v in variables if "accumulator" not in v.name and "seed" not in v.name]


def check_same(hvd, network, expected):
    for value, other in zip(state(network), expected, strict=True):
        np.testing.assert_array_equal(value, other)
    support.check_equal_on_all_ranks(hvd, [*network.variables, *network.optimizer.variables])


@pytest.mark.parametrize("optimizer", [slow("Adam"), "loss_scale", "momentum_accumulating", slow("schedule")])
@on_ranks(2, full=(1, 3))
def test_backup_on_rank_0(hvd, tmp_path, optimizer):
    """Cut after two epochs and started again, with other weights and no backup on the other ranks."""
    straight = compiled(hvd, OPTIMIZERS[optimizer]())
    fit(hvd, straight)

    def backup():
        return hvd.callbacks.rank_zero_only(keras.callbacks.BackupAndRestore(str(tmp_path / "backup")))

    with pytest.raises(KeyboardInterrupt):
        fit(hvd, compiled(hvd, OPTIMIZERS[optimizer]()), backup(), Interrupt())
    resumed = compiled(hvd, OPTIMIZERS[optimizer](), seed=50 + hvd.rank())
    history = fit(hvd, resumed, backup())
    assert history.epoch == list(range(CUT, EPOCHS))
    check_same(hvd, resumed, state(straight))


@pytest.mark.parametrize("everywhere", [slow(True), False])
@on_ranks(2, full=(1, 3))
def test_a_model_checkpoint_and_initial_epoch(hvd, tmp_path, everywhere):
    """The file that rank 0 wrote, loaded on rank 0 alone or by all, goes on bit for bit."""
    path = str(tmp_path / "model.keras")
    straight = compiled(hvd, OPTIMIZERS["Adam"]())
    fit(hvd, straight)
    checkpoint = [keras.callbacks.ModelCheckpoint(path)] if hvd.rank() == 0 else []
    first = compiled(hvd, OPTIMIZERS["Adam"]())
    fit(hvd, first, *checkpoint, epochs=CUT)
    hvd.allgather(np.zeros(1, "float32"), name="written")
    assert os.path.exists(path)
    if everywhere or hvd.rank() == 0:
        loaded = keras.models.load_model(path)
        loaded.compile(hvd.DistributedOptimizer(loaded.optimizer), "mse")
    else:
        loaded = compiled(hvd, OPTIMIZERS["Adam"](), seed=60)
    history = fit(hvd, loaded, initial_epoch=CUT)
    assert history.epoch == list(range(CUT, EPOCHS))
    check_same(hvd, loaded, state(straight))


@on_ranks(2)
def test_the_best_model_by_averaged_metrics(hvd, tmp_path):
    """Rank 0's checkpoint decides on what MetricAverage put before it, not on rank 0's own metric."""
    path = str(tmp_path / "best.weights.h5")
    network = compiled(hvd, OPTIMIZERS["Adam"]())

    class Own(keras.callbacks.Callback):
        """Rank 0's metric is best in the first epoch, the job's in the last."""

        def on_epoch_end(self, epoch, logs=None):
            logs["own"] = float(epoch) if hvd.rank() == 0 else -10.0 * epoch

    save = keras.callbacks.ModelCheckpoint(
        path, "own", mode="min", save_best_only=True, save_weights_only=True
    )
    fit(hvd, network, Own(), hvd.callbacks.MetricAverageCallback(), *([save] if hvd.rank() == 0 else []))
    hvd.allgather(np.zeros(1, "float32"), name="written")
    other = support.model(seed=8)
    other.load_weights(path)
    np.testing.assert_array_equal(support.weights(other), support.weights(network))


class Deferred(keras.Model):
    """Built by its first call."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(8, activation="tanh")
        self.last = keras.layers.Dense(support.CLASSES)

    def call(self, x):
        return self.last(self.first(x))


@on_ranks(2, full=(3,))
def test_a_deferred_model(hvd, tmp_path):
    """BackupAndRestore wants a built model, on rank 0; the others need not build theirs."""

    def make(seed):
        keras.utils.set_random_seed(seed)
        network = Deferred()
        network.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
        network(np.zeros((1, support.FEATURES), "float32"))
        return network

    def backup():
        return [keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))] if hvd.rank() == 0 else []

    straight = make(7)
    fit(hvd, straight)
    with pytest.raises(KeyboardInterrupt):
        fit(hvd, make(7), *backup(), Interrupt())
    resumed = make(60 + hvd.rank())
    fit(hvd, resumed, *backup())
    check_same(hvd, resumed, state(straight))


@on_ranks(2)
def test_early_stopping_and_a_backup(hvd, tmp_path):
    """Rank 0's backup is gone on all when training has ended together."""
    callbacks = [hvd.callbacks.MetricAverageCallback(), keras.callbacks.EarlyStopping("loss", mode="max")]
    if hvd.rank() == 0:
        callbacks.append(keras.callbacks.BackupAndRestore(str(tmp_path / "backup")))
    history = fit(hvd, compiled(hvd, OPTIMIZERS["Adam"]()), *callbacks)
    assert history.epoch == [0, 1]
    hvd.allgather(np.zeros(1, "float32"), name="ended")
    assert not (tmp_path / "backup").exists()
