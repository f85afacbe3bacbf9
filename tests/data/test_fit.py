"""Training on the parts equals one process with the N-times batch on the whole."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow
from tests.keras import support
from tfddl.keras.consistency import cache_check


class Batches(keras.utils.PyDataset):
    """Rows in their order."""

    def __init__(self, arrays, batch, **options):
        super().__init__(**options)
        self.arrays, self.batch = arrays, batch

    def __len__(self):
        return len(self.arrays[0]) // self.batch

    def __getitem__(self, index):
        rows = slice(index * self.batch, (index + 1) * self.batch)
        return tuple(array[rows] for array in self.arrays)


def samples(arrays, known):
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    return dataset if known else dataset.filter(lambda *_: True)


def part(hvd, way, arrays):
    """What `fit` gets: the samples that the whole job sees in a step are the same, however they are dealt."""
    batch = support.BATCH
    if way == "arrays":
        return tf.data.Dataset.from_tensor_slices(hvd.data.shard_arrays(*arrays)).batch(batch)
    if way == "py_dataset":
        return hvd.data.ShardedPyDataset(Batches(arrays, batch, workers=2))
    if way == "batches":
        return hvd.data.shard(samples(arrays, True).batch(batch, drop_remainder=True))
    if way == "samples":
        return hvd.data.shard(samples(arrays, True)).batch(batch)
    # Keras counts a step too many where it has to find the end of the data by itself (docs/data.md).
    return hvd.data.shard(samples(arrays, False)).batch(batch).repeat()


def train(network, optimizer, batches, **options):
    network.compile(optimizer=optimizer, loss=keras.losses.MeanSquaredError(dtype="float64"))
    network.fit(batches, verbose=0, shuffle=False, **options)
    return network


@pytest.mark.parametrize("way", ["arrays", slow("samples"), slow("unknown_samples"), "batches", "py_dataset"])
@on_ranks(2, full=(1, 3))
def test_fit_equals_one_process_with_the_n_times_batch(hvd, way):
    size = hvd.size()
    # Rows beyond the last complete group, which no rank may see.
    whole = support.data(size, "float64")
    arrays = tuple(np.concatenate([array, array[: size - 1] + 9]) for array in whole)
    alone = samples(whole, True).batch(support.BATCH * size)
    expected = train(support.model("float64"), keras.optimizers.Adam(0.01), alone, epochs=2)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    steps = support.STEPS if way == "unknown_samples" else None
    batches = part(hvd, way, arrays)
    found = train(support.model("float64"), optimizer, batches, epochs=2, steps_per_epoch=steps)
    assert int(optimizer.iterations.numpy()) == 2 * support.STEPS
    start = support.weights(support.model("float64"))
    assert np.abs(support.weights(found) - start).max() > 1e-3
    np.testing.assert_allclose(support.weights(found), support.weights(expected), rtol=1e-9)
    support.check_equal_on_all_ranks(hvd, [*found.variables, *optimizer.variables])


@on_ranks(2, full=(1, 3))
def test_a_file_of_a_cache_that_ranks_share(hvd, tmp_path):
    """All ranks would read the shard of the rank that has filled the file, perhaps in a program before this one."""
    path = hvd.broadcast_object(str(tmp_path / "cache"))
    own = f"{path}-{hvd.rank()}"
    arrays = support.data(hvd.size())
    several = hvd.size() > 1
    refused = pytest.raises(ValueError, match=rf"a file of its own.* Received: {path} of ranks 0, 1")

    def check(*data):
        cache_check.note(data)
        cache_check.check_noted("test.caches", hvd.global_process_set)

    for way in ("arrays", "samples", "unknown_samples", "batches"):
        shard = part(hvd, way, arrays)
        with refused if several else contextlib.nullcontext():
            check(shard, shard.cache(path).prefetch(1))
        check(shard.cache(), shard.cache(own))
    whole = samples(arrays, True).cache(path)
    check(hvd.data.shard(whole).cache(own), whole.shard(9, 1).cache(path))
    if several:
        with refused:
            callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
            sgd = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
            train(support.model(), sgd, shard, validation_data=shard.cache(path), callbacks=callbacks)


@on_ranks(2, full=(3,))
def test_endless_data_with_steps_per_epoch(hvd):
    size = hvd.size()
    arrays = support.data(size, "float64")
    steps = hvd.data.steps_per_epoch(len(arrays[0]), support.BATCH)
    assert steps == support.STEPS
    endless = hvd.data.shard(samples(arrays, True).repeat()).batch(support.BATCH)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    found = train(support.model("float64"), optimizer, endless, epochs=2, steps_per_epoch=steps)
    alone = samples(arrays, True).batch(support.BATCH * size)
    expected = train(support.model("float64"), keras.optimizers.Adam(0.01), alone, epochs=2)
    np.testing.assert_allclose(support.weights(found), support.weights(expected), rtol=1e-9)
