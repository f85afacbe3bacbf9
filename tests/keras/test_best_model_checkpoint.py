"""BestModelCheckpoint: the best by the whole job's metric, written by one rank."""

import os
import resource
import signal

import keras
import numpy as np
import pytest

from tests.harness import on_ranks
from tests.keras import support
from tests.sets.support import added


class Own(keras.callbacks.Callback):
    """Puts a metric into the logs: on rank 0 the first epoch is the best, for the whole job the second."""

    def __init__(self, rank, size):
        super().__init__()
        self.values = [0.0, 1.0, 2.0] if rank == 0 and size > 1 else [5.0, -5.0, 6.0]
        self.weights = []

    def on_epoch_end(self, epoch, logs=None):
        logs["own"] = self.values[epoch]
        self.weights.append(support.weights(self.model))


def train(hvd, path, *between, process_set=None, **options):
    options = {"process_set": process_set or hvd.global_process_set, **options}
    rank, size = options["process_set"].rank(), options["process_set"].size()
    network, own = support.model(), Own(rank, size)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.05), process_set=options["process_set"])
    callbacks = [own, *between, hvd.callbacks.BestModelCheckpoint(path, "own", mode="min", **options)]
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(
        options["process_set"].ranks[0], process_set=options["process_set"]
    )
    arrays = support.shard(support.data(size), rank, size)
    support.fit(network, optimizer, arrays, support.BATCH, epochs=3, callbacks=[broadcast, *callbacks])
    return own.weights, callbacks[-1].best


@on_ranks(2, full=(1, 3))
def test_the_best_of_the_job(hvd, tmp_path):
    """Each rank finds the complete file when fit returns; what the others were told to write is not there."""
    path = tmp_path / "best.keras"
    mine = path if hvd.rank() == 0 else tmp_path / "not.keras"
    with support.logged() as said:
        weights, best = train(hvd, mine, hvd.callbacks.MetricAverageCallback())
    assert said == [] and best == hvd.allgather_object(best)[0] <= 1
    saved = keras.models.load_model(path)
    assert type(saved.optimizer) is keras.optimizers.Adam and saved.optimizer.iterations == 2 * support.STEPS
    np.testing.assert_array_equal(support.weights(saved), weights[1])
    assert [one.name for one in tmp_path.iterdir()] == ["best.keras"]


@on_ranks(1)
def test_a_full_disk_leaves_the_best_so_far(hvd, tmp_path):
    """With `.weights.h5` the HDF5 library itself crashes."""
    path = tmp_path / "best.keras"
    before, limit = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(epoch, logs):
        if epoch == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))

    full = keras.callbacks.LambdaCallback(on_epoch_end=fill)
    try:
        with pytest.raises(OSError) as caught:
            train(hvd, path, full)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert caught.value.__notes__ == [
        f"BestModelCheckpoint could not write '{path}'. The file that was there before is whole."
    ]
    saved = keras.models.load_model(path)
    assert saved.optimizer.iterations == support.STEPS and os.listdir(tmp_path) == ["best.keras"]


@on_ranks(2)
def test_without_the_average_it_says_so(hvd, tmp_path):
    path = tmp_path / "{epoch}.weights.h5"
    with support.logged() as said:
        weights, _ = train(hvd, path, save_weights_only=True)
    assert len(said) == (hvd.rank() == 0)
    assert not said or (
        "rank 0's own, and other ranks have another value" in said[0] and "rank 0: 0; rank 1: 5" in said[0]
    )
    saved = support.model(seed=8)
    saved.load_weights(tmp_path / "1.weights.h5")  # rank 0's first epoch was its best
    np.testing.assert_array_equal(support.weights(saved), weights[0])
    assert [one.name for one in tmp_path.iterdir()] == ["1.weights.h5"]


@on_ranks(2, full=(3,))
def test_process_set_and_threshold(hvd, tmp_path):
    groups = {2: [[1], [0]], 3: [[1, 2], [0]]}[hvd.size()]
    with added(hvd, *groups) as sets:
        mine = next(one for one in sets if one.included())
        path = tmp_path / f"{mine.ranks[0]}.keras"
        average = hvd.callbacks.MetricAverageCallback(process_set=mine)
        weights, _ = train(hvd, path, average, process_set=mine, initial_value_threshold=-1.0)
        np.testing.assert_array_equal(support.weights(keras.models.load_model(path)), weights[1])
        none, _ = train(hvd, tmp_path / "none.keras", process_set=mine, initial_value_threshold=-7.0)
        assert len(none) == 3 and not (tmp_path / "none.keras").exists()


@on_ranks(1)
def test_what_it_refuses(hvd):
    with pytest.raises(ValueError, match="Received: save_freq=100"):
        hvd.callbacks.BestModelCheckpoint("best.keras", save_freq=100)
    with pytest.raises(ValueError, match=r"\.keras"):
        hvd.callbacks.BestModelCheckpoint("best")
