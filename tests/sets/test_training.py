"""Training on a subset of the ranks equals one process with the batch of all its members."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras.support import BATCH, data, fit, loop, model, shard, weights
from tests.sets.support import added


def _sets(size):
    """Disjoint sets of all ranks."""
    return {2: [[0], [1]], 3: [[0, 2], [1]], 4: [[0, 3], [1, 2]]}[size]


def _alone(size, train, optimizer):
    """The weights of one process with the big batch."""
    network = model("float64")
    train(network, optimizer, data(size, "float64"), BATCH * size)
    return weights(network)


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@on_ranks(2, 3, full=(4,), limit=120)
def test_tape(hvd, eager):
    with added(hvd, *_sets(hvd.size())) as sets:
        mine = next(one for one in sets if one.included())
        size, network = mine.size(), model("float64")
        wrap = lambda tape: hvd.DistributedGradientTape(tape, process_set=mine)  # noqa: E731
        loop(
            network,
            keras.optimizers.Adam(0.1),
            shard(data(size, "float64"), mine.rank(), size),
            BATCH,
            wrap,
            eager,
        )
        expected = _alone(size, loop, keras.optimizers.Adam(0.1))
        np.testing.assert_allclose(weights(network), expected, rtol=1e-9)


@on_ranks(2, 3, full=(4,), limit=120)
def test_two_models_are_fit_side_by_side(hvd):
    """Each set trains its model, with all callbacks; the second set has more epochs than the first."""
    with added(hvd, *_sets(hvd.size())) as sets:
        mine = next(one for one in sets if one.included())
        size, epochs = mine.size(), 1 + sets.index(mine)
        keras.utils.set_random_seed(hvd.rank())
        network = model("float64", seed=hvd.rank())
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), process_set=mine)
        history = fit(
            network,
            optimizer,
            shard(data(size, "float64"), mine.rank(), size),
            BATCH,
            epochs=epochs,
            callbacks=[
                hvd.callbacks.BroadcastGlobalVariablesCallback(mine.ranks[0], process_set=mine),
                hvd.callbacks.MetricAverageCallback(process_set=mine),
                hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=1e-9, process_set=mine),
            ],
        )
        reference = model("float64", seed=mine.ranks[0])
        alone = fit(reference, keras.optimizers.Adam(0.1), data(size, "float64"), BATCH * size, epochs=epochs)
        np.testing.assert_allclose(weights(network), weights(reference), rtol=1e-9)
        np.testing.assert_allclose(history.history["loss"], alone.history["loss"], rtol=1e-6)


@on_ranks(3, limit=120)
def test_a_rank_that_trains_two_models_at_once(hvd):
    """Rank 0 is in both sets. Optimizers are counted for each set, because rank 2 has only one."""
    with added(hvd, [0, 1], [0, 2]) as sets:
        mine = [one for one in sets if one.included()]
        networks = [model("float64", seed=one.process_set_id) for one in mine]
        optimizers = [hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=one) for one in mine]
        for network, optimizer in zip(networks, optimizers, strict=True):
            optimizer.build(network.trainable_variables)

        @tf.function
        def step(*batches):
            for one, network, optimizer, (x, y) in zip(mine, networks, optimizers, batches, strict=True):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(network(x) - y))
                gradients = tape.gradient(loss, network.trainable_variables)
                optimizer.apply(gradients, network.trainable_variables)
                hvd.allreduce(loss, process_set=one)

        shards = [shard(data(2, "float64"), one.rank(), 2) for one in mine]
        for start in range(0, len(shards[0][0]), BATCH):
            step(*[[array[start : start + BATCH] for array in arrays] for arrays in shards])
        for one, network in zip(mine, networks, strict=True):
            reference = model("float64", seed=one.process_set_id)
            loop(reference, keras.optimizers.SGD(0.1), data(2, "float64"), BATCH * 2)
            np.testing.assert_allclose(weights(network), weights(reference), rtol=1e-9)


@on_ranks(2, 3)
def test_a_rank_outside_trains_on_its_own(hvd):
    with added(hvd, [0]) as (only,):
        x = tf.Variable([2.0])
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, process_set=only) as tape:
            loss = (hvd.rank() + 1) * tf.reduce_sum(x)
        assert tape.gradient(loss, [x])[0].numpy().tolist() == [hvd.rank() + 1]
        network = model("float64")
        arrays = data(1, "float64")
        inner = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
        loop(network, hvd.DistributedOptimizer(inner, process_set=only), arrays, BATCH)
        np.testing.assert_allclose(weights(network), _alone(1, loop, keras.optimizers.SGD(0.1)), rtol=1e-9)


@on_ranks(2, 3, full=(4,), limit=120)
def test_loss_scale(hvd):
    """An infinity on one member makes all members skip the step; other ranks do not."""
    with added(hvd, *_sets(hvd.size())) as sets:
        mine = next(one for one in sets if one.included())
        inner = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0)
        optimizer = hvd.DistributedOptimizer(inner, process_set=mine)
        x = tf.Variable([2.0])
        optimizer.build([x])

        @tf.function
        def step(gradient):
            optimizer.apply([gradient * 8.0], [x])

        step(tf.constant([1.0]))
        np.testing.assert_array_equal(x.numpy(), [1.0])
        step(tf.constant([np.inf if hvd.rank() == 0 else 1.0], tf.float32))
        np.testing.assert_array_equal(x.numpy(), [1.0] if 0 in mine.ranks else [0.0])


@on_ranks(2, 3)
def test_errors_of_callbacks_name_ranks_of_the_job(hvd):
    last = hvd.size() - 1
    with added(hvd, *([[1, last]] if last > 1 else [])) as sets:
        one = sets[0] if sets else hvd.global_process_set
        if not one.included():
            return
        arrays = [array[: BATCH * (1 + one.rank())] for array in data(1, "float64")]
        network, first = model("float64"), one.ranks[0]
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=one)
        with pytest.raises(
            ValueError, match=f"numbers of batches.* rank {first}: batches=1; rank {last}: batches=2"
        ):
            fit(
                network,
                optimizer,
                arrays,
                BATCH,
                callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(first, process_set=one)],
            )


@on_ranks(2, 3)
def test_settings(hvd):
    with added(hvd, [0]) as (only,):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=only)
        with pytest.raises(ValueError, match="distributed already, with process_set="):
            hvd.DistributedOptimizer(optimizer)
        for make in (
            lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=0),
            lambda: hvd.DistributedGradientTape(tf.GradientTape(), process_set=[0]),
            lambda: hvd.callbacks.BroadcastGlobalVariablesCallback(0, process_set=1),
            lambda: hvd.callbacks.MetricAverageCallback(process_set=1),
            lambda: hvd.callbacks.StopTogetherCallback(process_set=1),
            lambda: hvd.callbacks.LearningRateWarmupCallback(0.1, process_set=1),
        ):
            with pytest.raises(TypeError, match="takes a ProcessSet"):
                make()
    with pytest.raises(ValueError, match="part of the job"):
        hvd.DistributedGradientTape(tf.GradientTape(), process_set=only)


@on_ranks(2, 3, full=(4,))
def test_data(hvd):
    """The data is sharded among the members."""
    with added(hvd, *_sets(hvd.size())) as sets:
        mine = next(one for one in sets if one.included())
        size, index = mine.size(), mine.rank()
        numbers = np.arange(12)
        expected = numbers[index::size].tolist()
        dataset = tf.data.Dataset.from_tensor_slices(numbers)
        assert list(hvd.data.shard(dataset, process_set=mine).as_numpy_iterator()) == expected
        assert hvd.data.shard_arrays(numbers, process_set=mine).tolist() == expected
        assert hvd.data.steps_per_epoch(12, 2, process_set=mine) == 12 // (2 * size)
        other = next(one for one in sets if not one.included())
        with pytest.raises(ValueError, match="is not a member"):
            hvd.data.shard_arrays(numbers, process_set=other)


@on_ranks(3)
def test_a_number_in_jobs_one_after_the_other(hvd):
    """Rank 0 has trained in an earlier set of this number, rank 2 has not: their names must be equal."""
    for other in (1, 2):
        hvd.shutdown()
        one = hvd.ProcessSet([0, other])
        hvd.init(process_sets=[one])
        assert one.process_set_id == 1
        if one.included():
            x = tf.Variable([float(hvd.rank())])
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=one)
            optimizer.apply([tf.constant([2.0 * hvd.rank()])], [x])
            assert x.numpy().tolist() == [hvd.rank() - other]
    hvd.shutdown()
    hvd.init()
