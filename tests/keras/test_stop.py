"""One rank wants to stop: all stop, after the same batch or epoch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow
from tests.keras import support

STEPS = 6


class Seen(keras.callbacks.Callback):
    """Counts; without hooks for batches, which would make ranks look after each batch, and without a best epoch."""

    def __init__(self, restores):
        super().__init__()
        self.restore_best_weights = restores
        self.epochs, self.batches = 0, 0

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1

    def on_train_end(self, logs=None):
        self.batches = int(self.model.optimizer.iterations.numpy())


class StopAt(keras.callbacks.Callback):
    """A user's callback that has one rank stop at a batch."""

    def __init__(self, stop, batch):
        super().__init__()
        self.stop, self.at = stop, batch

    def on_train_batch_end(self, batch, logs=None):
        if self.stop and batch >= self.at:
            self.model.stop_training = True


def fit(hvd, callbacks, arrays=None, epochs=4, broadcast=True, restores=True, **options):
    """Trains on this rank's shard; returns epochs and batches of this rank, after comparing all ranks."""
    network = support.model()
    network.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", **options.pop("compiling", {})
    )
    mine = support.shard(arrays or support.data(hvd.size(), steps=STEPS), hvd.rank(), hvd.size())
    seen = Seen(restores)
    first = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if broadcast else []
    network.fit(
        *mine,
        batch_size=support.BATCH,
        epochs=epochs,
        verbose=0,
        callbacks=[*first, *callbacks, seen],
        **options,
    )
    counts = hvd.allgather(tf.constant([[seen.epochs, seen.batches]]), name="seen").numpy()
    assert len({tuple(row) for row in counts}) == 1, counts
    support.check_equal_on_all_ranks(hvd, network.variables)
    return seen.epochs, seen.batches


def requests():
    """How many collectives this rank has asked for."""
    from tfddl.runtime import stats

    return stats()["requests"]


@pytest.mark.parametrize("where", ["added", slow("explicit"), "moved"])
@on_ranks(2, full=(1, 3))
def test_a_users_stop_in_the_middle_of_an_epoch(hvd, where):
    stop = StopAt(hvd.rank() == hvd.size() - 1, 3)
    together = hvd.callbacks.StopTogetherCallback()
    callbacks = {"added": [stop], "explicit": [stop, together], "moved": [together, stop]}[where]
    assert fit(hvd, callbacks, broadcast=where == "added") == (1, 4)


@on_ranks(2)
def test_a_stop_on_one_rank_whose_list_alone_can_stop(hvd):
    """Rank 0 has nothing that looks at batches; it takes part all the same."""
    assert fit(hvd, [StopAt(True, 2)] if hvd.rank() == 1 else []) == (1, 3)


@on_ranks(2)
def test_elastic_callback_comes_behind_it(hvd):
    """A commit at the end of `fit` holds the weights that `StopTogetherCallback` has made equal."""
    listed = [hvd.callbacks.ElasticCallback(), hvd.callbacks.BroadcastGlobalVariablesCallback(0), Seen(True)]
    callbacks = keras.callbacks.CallbackList(listed, model=support.model())
    kinds = [type(each).__name__ for each in callbacks.callbacks]
    assert kinds[-3:] == ["Seen", "StopTogetherCallback", "ElasticCallback"]


@on_ranks(2)
def test_several_steps_per_execution(hvd):
    assert fit(hvd, [StopAt(hvd.rank() == 1, 0)], compiling={"steps_per_execution": 4}) == (1, 4)


@on_ranks(2)
def test_in_a_lambda_callback(hvd):
    holder = []

    def stop(batch, logs):
        if hvd.rank() == 1 and batch == 1:
            holder[0].model.stop_training = True

    holder.append(keras.callbacks.LambdaCallback(on_train_batch_end=stop))
    assert fit(hvd, holder) == (1, 2)


@on_ranks(2)
def test_put_off_to_the_end_of_the_epoch(hvd):
    callbacks = [StopAt(hvd.rank() == 1, 3), hvd.callbacks.StopTogetherCallback(every_batch=False)]
    assert fit(hvd, callbacks) == (1, STEPS)


@on_ranks(2, full=(3,))
def test_infinity_on_one_rank_terminates_all(hvd):
    """The last rank's loss is infinite in the third batch, the others' is not: their weights come after."""
    x, y = support.data(hvd.size(), steps=STEPS)
    y[2 * support.BATCH * hvd.size() + hvd.size() - 1] = np.inf
    assert fit(hvd, [keras.callbacks.TerminateOnNaN()], (x, y)) == (1, 3)


@on_ranks(2, full=(1, 3))
def test_early_stopping_on_data_of_ones_own(hvd):
    """Only rank 0 sees its metric get worse; without MetricAverage the others would go on."""
    validation = support.data(1, steps=1)
    stopping = keras.callbacks.EarlyStopping("val_loss", mode="max" if hvd.rank() == 0 else "min")
    with support.logged() as said:
        epochs, batches = fit(hvd, [stopping], validation_data=validation, epochs=8, restores=False)
    assert (epochs, batches) == (2, 2 * STEPS)
    assert (stopping.stopped_epoch > 0) == (hvd.rank() == 0)
    warned = [line for line in said if "stopped training on rank 0 in epoch 2, but not on rank" in line]
    assert len(warned) == (hvd.size() > 1 and hvd.rank() == 0), said
    with support.logged() as said:  # a rank without EarlyStopping has nothing to agree with
        fit(hvd, [stopping] if hvd.rank() == 0 else [], validation_data=validation, epochs=8, restores=False)
    assert not said


@on_ranks(2)
def test_weights_of_different_epochs_are_not_kept(hvd):
    """EarlyStopping restores the best epoch of each rank; all take rank 0's."""
    validation = support.data(1, steps=1)
    mode = "max" if hvd.rank() == 0 else "min"
    stopping = keras.callbacks.EarlyStopping("val_loss", mode=mode, patience=2, restore_best_weights=True)
    with support.logged() as said:
        fit(hvd, [stopping], validation_data=validation, epochs=5)
    assert len(said) == (hvd.rank() == 0)  # one warning, that of the restored weights
    best = hvd.allgather(tf.constant([stopping.best_epoch]), name="best").numpy()
    assert len(set(best)) == 2


@on_ranks(2)
def test_different_learning_rates_are_refused(hvd):
    """ReduceLROnPlateau on unequal metrics would let the weights come apart."""
    validation = support.data(1, steps=1)
    mode = "max" if hvd.rank() == 0 else "min"
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", mode=mode, patience=1, factor=0.5)
    with pytest.raises(ValueError, match=r"rank 0: 0\.005; rank 1: 0\.01"):
        fit(hvd, [plateau], validation_data=validation)


@pytest.mark.parametrize("stoppers", [False, True])
@on_ranks(2)
def test_what_it_costs(hvd, stoppers):
    """A collective for each batch only where something could stop in the middle."""
    counts = []
    for epochs in (1, 2):
        before = requests()
        fit(hvd, [keras.callbacks.TerminateOnNaN()] if stoppers else [], epochs=epochs)
        counts.append(requests() - before)
    an_epoch = STEPS + 2  # One bucket of gradients for each step, the number of batches, the stop.
    assert counts[1] - counts[0] == an_epoch + (STEPS if stoppers else 0)
