"""A keras.utils.PyDataset in equal parts."""

import threading

import keras
import numpy as np
import pytest

from tests.harness import on_ranks
from tfddl import _compat, data


class Numbers(keras.utils.PyDataset):
    """Batches [i] of one number; notes what happens to it."""

    def __init__(self, count, **options):
        super().__init__(**options)
        self.count, self.begun, self.ended = count, 0, 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return np.full((1, 1), index, "float32"), np.full((1, 1), index, "float32")

    def on_epoch_begin(self):
        self.begun += 1

    def on_epoch_end(self):
        self.ended += 1


class Endless(Numbers):
    """The same, without an end."""

    num_batches = None


class Seen(keras.Model):
    """Remembers the batches it was trained on, in one row of a variable."""

    def __init__(self):
        super().__init__()
        self.rows = self.add_weight(shape=(100,), initializer="zeros", trainable=False)
        self.step = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def train_step(self, batch):
        x, _ = batch
        row = keras.ops.one_hot(self.step, 100) * (x[0, 0] + 1)
        self.rows.assign_add(row)
        self.step.assign_add(1)
        return {"loss": x[0, 0]}


def numbers_of(dataset):
    return [int(x[0, 0]) for x, _ in dataset]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("count", range(3, 10))
def test_drop_and_repeat(count, size, shuffle):
    for remainder, each in (("drop", count // size), ("repeat", -(-count // size))):
        shards = [
            data.ShardedPyDataset(Numbers(count), shuffle=shuffle, remainder=remainder, rank=rank, size=size)
            for rank in range(size)
        ]
        found = [numbers_of(shard) for shard in shards]
        assert [len(shard) for shard in shards] == [len(part) for part in found] == [each] * size
        together = [number for part in found for number in part]
        if remainder == "drop":
            assert len(set(together)) == each * size
        else:
            assert set(together) == set(range(count))
        if not shuffle and remainder == "drop":
            assert found == [list(range(rank, each * size, size)) for rank in range(size)]


def test_each_epoch_is_dealt_anew_and_alike_on_all_ranks():
    shards = [data.ShardedPyDataset(Numbers(20), shuffle=True, rank=rank, size=2) for rank in range(2)]
    epochs = []
    for _ in range(3):
        found = [numbers_of(shard) for shard in shards]
        assert sorted(found[0] + found[1]) == list(range(20))
        epochs.append(found)
        for shard in shards:
            shard.on_epoch_begin()
            shard.on_epoch_end()
    assert epochs[0][0] != epochs[1][0] != epochs[2][0]
    resumed = data.ShardedPyDataset(Numbers(20), shuffle=True, rank=0, size=2)
    resumed.epoch = 2
    assert numbers_of(resumed) == epochs[2][0]
    other = data.ShardedPyDataset(Numbers(20), shuffle=True, seed=1, rank=0, size=2)
    assert numbers_of(other) != epochs[0][0]


def test_an_end_without_a_beginning_is_no_epoch():
    """Keras resets its iterators that way, where a model is not built yet."""
    shard = data.ShardedPyDataset(Numbers(8), shuffle=True, rank=0, size=2)
    shard.on_epoch_end()
    assert shard.epoch == 0 and shard.dataset.ended == 1


def test_epochs_count_without_on_epoch_begin(monkeypatch):
    """As in Keras 3.4."""
    monkeypatch.setattr(_compat, "tells_epoch_begin", lambda: False)
    shard = data.ShardedPyDataset(Numbers(8), shuffle=True, rank=0, size=2)
    shard.on_epoch_end()
    assert (shard.epoch, shard.dataset.ended) == (1, 1)
    fetching = threading.Thread(target=shard.on_epoch_end, daemon=True)  # of Keras
    fetching.start()
    fetching.join()
    assert (shard.epoch, shard.dataset.ended) == (1, 1)


def test_endless():
    shard = data.ShardedPyDataset(Endless(0), rank=1, size=3)
    assert shard.num_batches is None
    assert [int(shard[i][0][0, 0]) for i in range(3)] == [1, 4, 7]
    with pytest.raises(TypeError, match="steps_per_epoch"):
        len(shard)
    with pytest.raises(ValueError, match="num_batches=None, shuffle=True"):
        data.ShardedPyDataset(Endless(0), shuffle=True, rank=1, size=3)


def test_workers_are_those_of_the_wrapped_dataset_unless_told_otherwise():
    whole = Numbers(4, workers=3, use_multiprocessing=True, max_queue_size=7)
    shard = data.ShardedPyDataset(whole, rank=0, size=2)
    assert (shard.workers, shard.use_multiprocessing, shard.max_queue_size) == (3, True, 7)
    shard = data.ShardedPyDataset(
        whole, rank=0, size=2, workers=1, use_multiprocessing=False, max_queue_size=2
    )
    assert (shard.workers, shard.use_multiprocessing, shard.max_queue_size) == (1, False, 2)


def test_errors_quote_what_they_received():
    with pytest.raises(ValueError, match="batches=2, size=3"):
        data.ShardedPyDataset(Numbers(2), rank=0, size=3)
    with pytest.raises(ValueError, match="remainder='pad'"):
        data.ShardedPyDataset(Numbers(4), remainder="pad", rank=0, size=2)
    with pytest.raises(TypeError, match=r"use hvd.data.shard .* Received: list"):
        data.ShardedPyDataset([1, 2], rank=0, size=2)
    shard = data.ShardedPyDataset(Numbers(5), rank=0, size=2)
    for index in (2, -1):
        with pytest.raises(IndexError, match=f"2 batches: .* Received: index={index}"):
            shard[index]


@pytest.mark.parametrize("workers", ["none", "threads", "processes"])
@on_ranks(1, 2, 3)
def test_fit_sees_every_batch_once_an_epoch(hvd, workers):
    """Keras' own shuffling (the default of `fit`) stays inside a rank."""
    options = {
        "none": {},
        "threads": {"workers": 3, "max_queue_size": 3},
        "processes": {"workers": 2, "use_multiprocessing": True},
    }[workers]
    whole = Numbers(6 * hvd.size() + 1, **options)
    shard = hvd.data.ShardedPyDataset(whole, shuffle=True, seed=3)
    model = Seen()
    model.compile(optimizer="sgd", jit_compile=False)
    model.fit(shard, epochs=3, verbose=0)
    each = len(shard)
    assert each == len(whole) // hvd.size() and int(model.step.numpy()) == 3 * each
    assert whole.begun == 3 and whole.ended >= 3 and shard.epoch == 3
    rows = hvd.allgather(model.rows.numpy()[None], name="rows").numpy().astype(int) - 1
    expected = [np.random.default_rng((3, epoch)).permutation(len(whole)) for epoch in range(3)]
    for epoch in range(3):
        together = rows[:, epoch * each : (epoch + 1) * each].ravel()
        assert sorted(together) == sorted(expected[epoch][: each * hvd.size()])


@on_ranks(1)
def test_before_init(hvd):
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"Received: a call of hvd\.data\.ShardedPyDataset\(\)"):
        data.ShardedPyDataset(Numbers(4))
