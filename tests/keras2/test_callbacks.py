"""The callbacks of tfddl in a fit of Keras 2."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras.support import logged
from tests.keras2 import support
from tfddl import _compat

keras = tf.keras


def train(hvd, optimizer, *callbacks, seed=7, epochs=2, **options):
    """Rank r starts from the weights of seed + r."""
    network = support.model(seed + hvd.rank())
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    network.compile(hvd.DistributedOptimizer(optimizer), "mse", metrics=["mae"])
    history = network.fit(
        *mine,
        batch_size=support.BATCH,
        shuffle=False,
        verbose=0,
        epochs=epochs,
        callbacks=list(callbacks),
        **options,
    )
    return network, history


@pytest.mark.parametrize("kind", ["new", "legacy"])
@on_ranks(1, 2, 3)
def test_broadcast_and_metrics(hvd, kind):
    """Slots that rank 0 brings along come to all, and all log the mean of what each would have."""
    make = {"new": keras.optimizers, "legacy": keras.optimizers.legacy}[kind].Adam
    optimizer = make(0.01)
    own = support.model(seed=100 + hvd.rank())
    if hvd.rank() == 0:
        optimizer.apply_gradients([(tf.ones_like(v), v) for v in own.trainable_variables])
    network, history = train(
        hvd,
        make(0.01),
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    )
    support.check_equal_on_all_ranks(hvd, network.get_weights())
    support.check_equal_on_all_ranks(
        hvd,
        [
            v.numpy()
            for v in (
                network.optimizer.variables()
                if callable(network.optimizer.variables)
                else network.optimizer.variables
            )
        ],
    )
    support.check_equal_on_all_ranks(hvd, [np.array(history.history[key]) for key in ("loss", "mae")])
    assert int(network.optimizer.iterations) == 2 * support.STEPS


class Towers(keras.Model):
    """Holds models whose weights come with the first step."""

    def __init__(self):
        super().__init__()
        self.towers = [keras.Sequential([keras.layers.Dense(1)]) for _ in range(2)]

    def call(self, inputs):
        return self.towers[0](inputs) * self.towers[1](inputs)


@pytest.mark.parametrize("broadcasts", [True, False])
@on_ranks(2)
def test_models_inside_that_are_not_built(hvd, broadcasts):
    keras.utils.set_random_seed(hvd.rank())
    network = Towers()
    network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if broadcasts else []
    with logged() as lines:
        network.fit(*mine, batch_size=support.BATCH, verbose=0, callbacks=callbacks)
    if broadcasts:
        support.check_equal_on_all_ranks(hvd, network.get_weights())
    elif hvd.rank() == 0:
        assert any("fit has no BroadcastGlobalVariablesCallback" in line for line in lines)


def averaged(*arguments, **options):
    """Trains as the optimizer inside does, and averages aside."""
    addons = pytest.importorskip("tensorflow_addons").optimizers
    return addons.MovingAverage(keras.optimizers.legacy.SGD(*arguments, **options))


@pytest.mark.parametrize("kind", ["new", "legacy", "scaled", "averaged"])
@on_ranks(2)
def test_warmup_and_schedule_correct_the_momentum(hvd, kind):
    """Against a loop that has the rate in front of the momentum, where a change needs no correction."""
    scaled = keras.mixed_precision.LossScaleOptimizer
    make = {
        "new": keras.optimizers.SGD,
        "legacy": keras.optimizers.legacy.SGD,
        "scaled": lambda *arguments, **options: scaled(keras.optimizers.SGD(*arguments, **options)),
        "averaged": averaged,
    }[kind]
    rate, epochs = 0.02, 3
    schedule = hvd.callbacks.LearningRateScheduleCallback(rate, lambda epoch: 0.5**epoch, start_epoch=1)
    warmup = hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=1)
    network, history = train(
        hvd,
        make(rate, momentum=0.9),
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        warmup,
        schedule,
        epochs=epochs,
    )
    np.testing.assert_allclose(history.history["lr"], [rate, rate / 2, rate / 4], rtol=1e-6)
    expected = support.model(seed=7)
    x, y = support.data(hvd.size())
    velocity = [tf.zeros_like(v) for v in expected.trainable_variables]
    batch = hvd.size() * support.BATCH
    for epoch in range(epochs):
        for step in range(support.STEPS):
            now = (
                rate * 0.5**epoch
                if epoch
                else rate * ((step + 1) / support.STEPS * (hvd.size() - 1) + 1) / hvd.size()
            )
            rows = slice(step * batch, (step + 1) * batch)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((expected(x[rows]) - y[rows]) ** 2)
            gradients = tape.gradient(loss, expected.trainable_variables)
            velocity = [0.9 * old + gradient for old, gradient in zip(velocity, gradients, strict=True)]
            for variable, slot in zip(expected.trainable_variables, velocity, strict=True):
                variable.assign_sub(now * slot)
    np.testing.assert_allclose(support.weights(network), support.weights(expected), rtol=1e-3, atol=1e-5)


@on_ranks(2, 3)
def test_a_stop_of_one_rank_stops_all(hvd):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = hvd.rank() == 1 and epoch == 1

    _, history = train(
        hvd, keras.optimizers.SGD(0.01), hvd.callbacks.BroadcastGlobalVariablesCallback(0), Stop(), epochs=9
    )
    assert len(history.epoch) == 2


@pytest.mark.parametrize("kind", ["new", "legacy"])
@on_ranks(1, 2, 3)
def test_resumes_with_a_backup_on_rank_0(hvd, tmp_path, kind):
    make = {"new": keras.optimizers, "legacy": keras.optimizers.legacy}[kind].Adam

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    def callbacks(*more):
        backup = [keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))] if hvd.rank() == 0 else []
        return [*backup, hvd.callbacks.BroadcastGlobalVariablesCallback(0), *more]

    straight, _ = train(hvd, make(0.01), hvd.callbacks.BroadcastGlobalVariablesCallback(0), epochs=4)
    with pytest.raises(KeyboardInterrupt):
        train(hvd, make(0.01), *callbacks(Interrupt()), epochs=4)
    resumed, history = train(hvd, make(0.01), *callbacks(), seed=50, epochs=4)
    assert history.epoch[0] in (1, 2)  # some versions back up the epoch before
    if history.epoch[0] == 2:
        np.testing.assert_array_equal(support.weights(resumed), support.weights(straight))
    support.check_equal_on_all_ranks(hvd, resumed.get_weights())


@on_ranks(2)
def test_ranks_with_different_numbers_of_batches(hvd):
    network = support.model()
    network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x, y = support.data(1, steps=3 + hvd.rank())
    with pytest.raises(ValueError, match="different numbers of batches"):
        network.fit(
            x, y, batch_size=4, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        )


@on_ranks(2)
def test_a_plain_optimizer_is_refused(hvd):
    network = support.model()
    network.compile("sgd", "mse")
    with pytest.raises(ValueError, match="not distributed"):
        network.fit(
            *support.data(1), verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        )


@on_ranks(2)
def test_sharded_sequence(hvd):
    class Batches(keras.utils.Sequence):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return np.full((2, 3), index, "f"), np.zeros(2, "f")

    mine = hvd.data.ShardedPyDataset(Batches())
    assert len(mine) == 2
    assert [int(mine[i][0][0, 0]) for i in range(2)] == [hvd.rank(), hvd.rank() + 2]
    network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1e-3)), "mse")
    network.fit(mine, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert int(network.optimizer.iterations) == 2


@pytest.mark.parametrize("kind", ["new", "legacy"])
@on_ranks(2)
def test_each_rank_has_other_tables(hvd, kind):
    """Rank 0 has two, rank 1 has one of another shape. Their slots stay each rank's own, also in a second fit."""
    width = 3 + hvd.rank()
    inputs = keras.Input((width,))
    tables = [keras.layers.Dense(2, use_bias=False, name=f"table{each}") for each in range(2 - hvd.rank())]
    head = keras.layers.Dense(1)
    network = keras.Model(inputs, head(sum(table(inputs) for table in tables)))
    make = {"new": keras.optimizers, "legacy": keras.optimizers.legacy}[kind].Adam
    network.compile(hvd.PartialDistributedOptimizer(make(0.01), local_layers=tables), "mse")
    local = [table.kernel for table in tables]
    for _ in range(2):
        first = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=local)
        x = np.full([4, width], 1.0 + hvd.rank(), "f")
        network.fit(x, np.zeros([4, 1], "f"), verbose=0, callbacks=[first])
    support.check_equal_on_all_ranks(hvd, head.variables)


@on_ranks(2)
def test_early_stopping_that_has_not_stopped(hvd):
    """Keras 2.15 restores nothing then; later ones restore the best weights. The best epoch is another one on each rank."""
    kept = []

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            kept[:] = self.model.get_weights()
            logs["own"] = abs(epoch - hvd.rank())

    network = support.model()
    network.compile(keras.optimizers.SGD(0.01), "mse")
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    stopping = keras.callbacks.EarlyStopping("own", mode="min", patience=9, restore_best_weights=True)
    with logged() as lines:
        network.fit(*mine, verbose=0, epochs=3, callbacks=[hvd.callbacks.LocalSGD(2), Own(), stopping])
    restores = _compat.restores_after_each_training()
    assert any("different epochs" in line for line in lines) == (restores and hvd.rank() == 0)
    if restores:
        kept = network.get_weights() if hvd.rank() == 0 else None
        kept = hvd.broadcast_object(kept, 0)
    for weight, *owns in zip(network.get_weights(), *hvd.allgather_object(kept), strict=True):
        np.testing.assert_allclose(weight, np.mean(owns, axis=0), rtol=1e-6, atol=1e-6)
