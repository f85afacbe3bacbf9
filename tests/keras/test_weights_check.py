"""TFDDL_CHECK, and warnings of what makes ranks part: learning rates and backups."""

import os
import sys
from unittest import mock

import keras
import pytest

from tests.harness import on_ranks
from tests.keras import support


class Disturbance(keras.callbacks.Callback):
    """Changes one weight on the last rank after a batch, by its last bits."""

    def __init__(self, hvd, batch):
        super().__init__()
        self._here = hvd.rank() == hvd.size() - 1
        self._batch, self._seen = batch, 0

    def on_train_batch_begin(self, batch, logs=None):
        if self._here and self._seen == self._batch:
            kernel = self.model.layers[-1].kernel
            kernel.assign(kernel * (1 + 1e-6))
        self._seen += 1


class Idle(keras.callbacks.BackupAndRestore):
    """Writes no file."""

    def on_train_begin(self, logs=None): ...
    def on_train_batch_end(self, batch, logs=None): ...
    def on_epoch_end(self, epoch, logs=None): ...
    def on_train_end(self, logs=None): ...


def train(hvd, *callbacks, rate=0.01, epochs=2, steps_per_execution=1, before=()):
    network = support.model()
    network.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(rate)), "mse", steps_per_execution=steps_per_execution
    )
    mine = support.shard(support.data(hvd.size(), steps=6), hvd.rank(), hvd.size())
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    every = [*before, broadcast, *callbacks]
    network.fit(*mine, batch_size=support.BATCH, epochs=epochs, verbose=0, shuffle=False, callbacks=every)


@on_ranks(2, full=(3,))
def test_the_first_weight_that_differs_is_named(hvd):
    others = "rank 0" if hvd.size() == 2 else "ranks 0, 1"
    told = (
        r"TFDDL_CHECK=2.* equal after step 6 of this training and differ after step 8; .*"
        rf"Received: 1 of 4 weights differ; the first is .*dense_\d+/kernel, with checksums {others}: \w{{8}}; "
        rf"rank {hvd.size() - 1}: \w{{8}}"
    )
    with mock.patch.dict(os.environ, TFDDL_CHECK="2"):
        train(hvd)
        with pytest.raises(ValueError, match=told):
            train(hvd, Disturbance(hvd, batch=7))  # in the second epoch
    train(hvd, Disturbance(hvd, batch=7))


@on_ranks(2)
def test_several_steps_per_execution(hvd):
    with mock.patch.dict(os.environ, TFDDL_CHECK="1"):
        train(hvd, steps_per_execution=3)
        with pytest.raises(ValueError, match="equal after step 3 of this training and differ after step 6"):
            train(hvd, Disturbance(hvd, batch=1), steps_per_execution=3)


@on_ranks(2)
@pytest.mark.parametrize("text", ["-1", "2.5", "often"])
def test_a_number_of_steps_that_is_none(hvd, text):
    with (
        mock.patch.dict(os.environ, TFDDL_CHECK=text),
        pytest.raises(ValueError, match=f"Received: '{text}'"),
    ):
        train(hvd)


@on_ranks(2)
def test_ranks_with_different_checks(hvd):
    value = str(1 + hvd.rank())
    told = "rank 0: TFDDL_CHECK=1; rank 1: TFDDL_CHECK=2"
    with mock.patch.dict(os.environ, TFDDL_CHECK=value), pytest.raises(ValueError, match=told):
        train(hvd)


@on_ranks(2)
def test_a_learning_rate_that_the_broadcast_changes(hvd):
    with support.logged() as said:
        train(hvd, epochs=1)
    assert not said
    with support.logged() as said:
        train(hvd, rate=0.01 * (1 + hvd.rank()), epochs=1)
    told = [text for text in said if "Received: root_rank=0 with 0.01; rank 1: 0.02" in text]
    assert len(told) == (hvd.rank() == 0)


@on_ranks(2)
def test_backups_that_do_not_resume_together(hvd, tmp_path):
    def backup(name):
        return keras.callbacks.BackupAndRestore(str(tmp_path / name))

    with support.logged() as said:
        train(hvd, before=[backup("root")] if hvd.rank() == 0 else [], epochs=1)
    assert not said
    with support.logged() as said:
        train(hvd, *([backup("root")] if hvd.rank() == 0 else []), epochs=1)
    assert [text for text in said if "BackupAndRestore after it on rank 0" in text] or hvd.rank()
    with support.logged() as said:
        train(hvd, before=[backup(f"rank{hvd.rank()}")], epochs=1)
    assert not said
    with support.logged() as said:
        train(hvd, before=[Idle(str(tmp_path / "shared"))], epochs=1)
    told = [text for text in said if "overwrite each other's" in text and "shared' on ranks 0, 1" in text]
    assert len(told) == (hvd.rank() == 0)


@on_ranks(2)
def test_files_that_several_ranks_write(hvd, tmp_path):
    shared = hvd.broadcast_object(str(tmp_path), 0)

    def files(name):
        callbacks = keras.callbacks
        return [
            callbacks.ModelCheckpoint(f"{shared}/{name}.keras"),
            callbacks.CSVLogger(f"{shared}/{name}.csv"),
        ]

    for name, count in (("all", 2), (f"rank{hvd.rank()}", 0)):
        with support.logged() as said:
            train(hvd, *files(name), epochs=1)
        told = [text for text in said if "one file at the same time" in text and "on ranks 0, 1" in text]
        assert len(told) == count * (hvd.rank() == 0), said


@on_ranks(2)
def test_a_search_of_keras_tuner_is_told_what_to_do(hvd):
    told = "In a search of KerasTuner give all ranks the same seed.* Received: "
    network = support.model()
    optimizers = keras.optimizers.SGD(0.01), keras.optimizers.Adam(0.01)
    network.compile(hvd.DistributedOptimizer(optimizers[hvd.rank()]), "mse")
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    with mock.patch.dict(sys.modules, keras_tuner=keras), pytest.raises(ValueError, match=told):
        network.fit(*mine, callbacks=callbacks, verbose=0)
