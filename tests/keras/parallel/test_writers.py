"""DataParallel: callbacks of Keras that write, and subclasses of them."""

import os
from unittest import mock

import keras
import numpy as np
import pytest

from tests.harness import on_ranks
from tests.keras import support
from tests.keras.parallel.small import X, Y, parallel, small_model


class Decay(keras.callbacks.ModelCheckpoint):
    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        kernel = self.model.layers[0].kernel
        kernel.assign(kernel * 0.5)

    def on_train_end(self, logs=None):
        self.model.load_weights(self.filepath)


class LearningRate(keras.callbacks.CSVLogger):
    def on_epoch_end(self, epoch, logs=None):
        logs["rate"] = float(self.model.optimizer.learning_rate.numpy())
        super().on_epoch_end(epoch, logs)
        self.csv_file.write("# a line\n")
        self.model.optimizer.learning_rate = logs["rate"] / 2


class Resumed(keras.callbacks.BackupAndRestore):
    epochs = 0

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.epochs += 1


class Board(keras.callbacks.TensorBoard):
    summary = mock.MagicMock()  # Keras' own needs tensorboard

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        with self._train_writer.as_default():
            logs["board"] = epoch


@on_ranks(2)
def test_the_code_of_a_subclass_runs_on_all_ranks(hvd, tmp_path):
    """And the files are those of rank 0 alone."""
    directory = f"{hvd.broadcast_object(str(tmp_path), 0)}/rank{hvd.rank()}"
    best = f"{directory}/../best.weights.h5"
    os.mkdir(directory)
    with parallel(hvd), support.logged() as warnings:
        callbacks = [
            Decay(best, monitor="loss", save_best_only=True, save_weights_only=True),
            LearningRate(f"{directory}/log.csv"),
            Board(f"{directory}/logs", update_freq=1, write_graph=False),
            Resumed(f"{directory}/backup", delete_checkpoint=False),
        ]
        network = small_model()
        history = network.fit(X, Y, verbose=0, epochs=3, callbacks=callbacks).history
    assert warnings == []
    np.testing.assert_allclose(history["rate"], [0.01, 0.005, 0.0025])
    assert history["board"] == [0, 1, 2] and callbacks[3].epochs == 3
    assert hvd.allgather_object(float(callbacks[0].best)) == [min(history["loss"])] * 2
    support.check_equal_on_all_ranks(hvd, network.variables)
    assert [type(each) for each in callbacks] == [Decay, LearningRate, Board, Resumed]
    writes = hvd.rank() == 0
    assert sorted(os.listdir(directory)) == ["backup", "log.csv"] * writes
    assert bool(Board.summary.mock_calls) == writes


class Exported(keras.Sequential):
    def save(self, filepath, **options):
        vars(self).setdefault("files", []).append(filepath)


@on_ranks(2)
def test_a_model_that_saves_itself(hvd):
    """Rank 0 alone saves. The callback has its own class again, also after an error."""

    def fail(batch, logs):
        raise ArithmeticError

    checkpoint = keras.callbacks.ModelCheckpoint("model.keras")
    with parallel(hvd):
        network = Exported([keras.Input((4,)), keras.layers.Dense(1)])
        network.compile("sgd", "mse")
        network.fit(X, Y, verbose=0, callbacks=[checkpoint])
        failing = keras.callbacks.LambdaCallback(on_train_batch_begin=fail)
        with pytest.raises(ArithmeticError):
            network.fit(X, Y, verbose=0, callbacks=[checkpoint, failing])
    assert type(checkpoint) is keras.callbacks.ModelCheckpoint
    assert vars(network).get("files", []) == ["model.keras"] * (hvd.rank() == 0)


@pytest.mark.parametrize("save_freq", ["epoch", 1])
@on_ranks(2)
def test_the_best_value_of_rank_0(hvd, tmp_path, save_freq):
    """Also where it decides by metrics of its own rows."""
    path = f"{hvd.broadcast_object(str(tmp_path), 0)}/best.keras"
    with parallel(hvd):
        checkpoint = keras.callbacks.ModelCheckpoint(
            path, monitor="loss", mode="min", save_best_only=True, save_freq=save_freq
        )
        rows = np.arange(32.0, dtype="float32").reshape(8, 4) / 32
        small_model().fit(rows, Y, batch_size=8, verbose=0, epochs=2, callbacks=[checkpoint])
    values = hvd.allgather_object(float(checkpoint.best))
    assert values[0] == values[1] < np.inf
    keras.models.load_model(path)
