"""DataParallel: programs that it refuses, and its rules beside the numbers."""

import contextlib
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras.parallel.programs import batch_normalization, generator


def _model(**compiled):
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    network.compile(**{"optimizer": "sgd", "loss": "mse", **compiled})
    return network


X, Y = np.ones([8, 4], "float32"), np.ones([8, 1], "float32")


@contextlib.contextmanager
def parallel(hvd, **options):
    active = hvd.DataParallel(seed=3, **options)
    try:
        yield active
    finally:
        active.stop()


def fixed_batch_size(hvd):
    network = keras.Sequential([keras.Input(batch_shape=(8, 4)), keras.layers.Dense(1)])
    network.compile(loss="mse")
    network.fit(X, Y, verbose=0)


def stateful(hvd):
    network = keras.Sequential([keras.layers.LSTM(3, stateful=True)])
    network.compile(loss="mse")
    network.fit(X[..., None], np.ones([8, 3]), verbose=0)


def no_reduction(hvd):
    _model(loss=keras.losses.MeanSquaredError(reduction=None)).fit(X, Y, verbose=0)


def rows_together(hvd):
    _model(loss=keras.losses.Dice()).fit(X, Y, verbose=0)


def strategy(hvd):
    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        _model().fit(X, Y, verbose=0)


def distributed_optimizer(hvd):
    _model(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD())).fit(X, Y, verbose=0)


def our_callback(hvd):
    _model().fit(X, Y, verbose=0, callbacks=[hvd.callbacks.MetricAverageCallback()])


def other_first_dimensions(hvd):
    data = tf.data.Dataset.from_tensors((X, Y[:7]))
    _model().fit(data, verbose=0)


def other_batches(hvd):
    _model().fit(X + hvd.rank(), Y, verbose=0)


REFUSED = {
    fixed_batch_size: "keras.Input((4,))",
    stateful: "stateful=False",
    no_reduction: "reduction='sum_over_batch_size'",
    rows_together: "Write axis=(1, 2, 3)",
    strategy: "Leave the strategy and its scope out",
    distributed_optimizer: "without hvd.DistributedOptimizer",
    our_callback: "none of them. Received: MetricAverageCallback",
    other_first_dimensions: "first dimension",
    other_batches: "training batch 0 in the first step differs from rank 0's on rank 1",
}


@pytest.mark.parametrize("program", sorted(program.__name__ for program in REFUSED))
@on_ranks(2)
def test_a_program_that_cannot_be_divided(hvd, program):
    (run,) = (each for each in REFUSED if each.__name__ == program)
    with parallel(hvd), pytest.raises(Exception, match="") as caught:
        run(hvd)
    assert REFUSED[run] in str(caught.value), caught.value


@on_ranks(2)
def test_random_layers_draw_other_numbers_on_each_rank(hvd):
    with parallel(hvd):
        network = keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5)])
        network.compile(loss="mse")
        network.fit(np.ones([8, 64]), np.ones([8, 64]), verbose=0)
        masks = hvd.allgather_object(network(np.ones([1, 64]), training=True).numpy())
    assert not np.array_equal(*masks)


@on_ranks(2)
def test_statistics_of_batch_normalization_may_stay_the_ranks_own(hvd):
    with parallel(hvd, synchronize_batch_normalization=False):
        network, _ = batch_normalization()
    means = hvd.allgather_object(network.layers[1].moving_mean.numpy())
    assert not np.array_equal(*means)


@on_ranks(2)
def test_rank_0_writes(hvd, tmp_path):
    directory = hvd.broadcast_object(str(tmp_path), 0)
    path = os.path.join(directory, "{}.keras")
    with parallel(hvd):
        network = _model()
        callbacks = [
            keras.callbacks.ModelCheckpoint(path.format("best")),
            keras.callbacks.CSVLogger(f"{directory}/log.csv"),
        ]
        network.fit(X, Y, verbose=0, epochs=2, callbacks=callbacks)
        network.save(path.format("last"))
        network.save_weights(f"{directory}/rank{hvd.rank()}.weights.h5")
        again = keras.models.load_model(path.format("last"))
        np.testing.assert_array_equal(again.get_weights()[0], network.get_weights()[0])
        with pytest.raises(Exception, match="no-such"):
            network.save(f"{directory}/no-such/model.keras")
    assert sorted(os.listdir(directory)) == ["best.keras", "last.keras", "log.csv", "rank0.weights.h5"]
    with open(f"{directory}/log.csv") as log:
        assert len(log.readlines()) == 3


@on_ranks(2)
def test_only_rank_0_reads_a_generator(hvd):
    read = []

    def batches():
        while True:
            read.append(1)
            yield X, Y

    with parallel(hvd):
        _model().fit(batches(), steps_per_epoch=3, epochs=2, verbose=0)
        generator()
    assert bool(read) == (hvd.rank() == 0)


@on_ranks(2)
def test_evaluate_and_predict_are_whole_on_every_rank(hvd):
    with parallel(hvd):
        network = _model()
        network.fit(X, Y, verbose=0)
        if hvd.rank() == 1:  # no other rank takes part
            assert network.predict(X[:3], verbose=0).shape == (3, 1)
            assert network.evaluate(X, Y, verbose=0) >= 0


@on_ranks(2)
def test_single_batches_in_callbacks_are_whole(hvd):
    shapes = []
    with parallel(hvd):
        ask = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: shapes.append(network.predict_on_batch(X).shape)
        )
        network = _model()
        network.fit(X, Y, verbose=0, callbacks=[ask])
    assert shapes == [(8, 1)]


@on_ranks(2)
def test_a_backup_resumes_on_all_ranks(hvd, tmp_path):
    directory = hvd.broadcast_object(str(tmp_path), 0)

    def stop(epoch, logs):
        raise InterruptedError

    with parallel(hvd):
        with pytest.raises(InterruptedError):
            callbacks = [
                keras.callbacks.BackupAndRestore(directory),
                keras.callbacks.LambdaCallback(on_epoch_end=stop),
            ]
            _model().fit(X, Y, verbose=0, epochs=3, callbacks=callbacks)
        history = _model().fit(
            X, Y, verbose=0, epochs=3, callbacks=[keras.callbacks.BackupAndRestore(directory)]
        )
    assert history.epoch == [1, 2]
