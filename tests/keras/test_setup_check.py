"""Ranks whose optimizers or callbacks differ in what no collective would notice."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras import support
from tests.sets.support import added
from tfddl.keras.consistency import callback_list
from tfddl.keras.consistency.adapted_check import check_adapted
from tfddl.runtime.process_sets import global_process_set


def train(hvd, optimizer, *callbacks, first=True, **options):
    network = support.model()
    network.compile(hvd.DistributedOptimizer(optimizer, **options), "mse")
    broadcast = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    listed = [*broadcast, *callbacks] if first else [*callbacks, *broadcast]
    network.fit(*mine, batch_size=support.BATCH, shuffle=False, verbose=0, callbacks=listed)
    return network


@on_ranks(2, full=(3,))
def test_options_of_the_distributed_optimizer(hvd):
    option = "average_aggregated_gradients"
    wanted = rf"different optimizers.*rank 0: {option}=True; ranks? 1(, 2)?: {option}=False"
    with pytest.raises(ValueError, match=wanted):
        train(
            hvd,
            keras.optimizers.SGD(0.1),
            backward_passes_per_step=2,
            average_aggregated_gradients=hvd.rank() == 0,
        )


@on_ranks(2)
def test_shards_of_other_rows(hvd):
    hvd.data.shard(np.random.default_rng(hvd.rank()).permutation(64))
    with pytest.raises(ValueError, match=r"hvd\.data\.shard needs the same rows, in the same order"):
        train(hvd, keras.optimizers.SGD(0.1))


@on_ranks(2, full=(1, 3))
def test_the_same_rows_on_all_ranks(hvd):
    callback_list._shards = False
    whole = support.data(hvd.size())
    network = support.model()
    network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    options = {"batch_size": support.BATCH, "verbose": 0, "callbacks": callbacks}
    with support.logged() as said:
        network.fit(*support.shard(whole, hvd.rank(), hvd.size()), **options)
        network.fit(*whole, steps_per_epoch=2, **options)
    assert said == []
    with support.logged() as said:
        network.fit(*whole, **options)
    if hvd.rank() > 0 or hvd.size() == 1:
        assert said == []
    else:
        assert [f"each epoch has every row {hvd.size()} times" in each for each in said] == [True]


@on_ranks(2)
def test_ranks_of_the_optimizer_and_of_the_callback(hvd):
    wanted = (
        rf"DistributedOptimizer with ranks \[{hvd.rank()}\], BroadcastGlobalVariablesCallback with \[0, 1\]"
    )
    with added(hvd, [0], [1]) as sets, pytest.raises(ValueError, match=wanted):
        train(hvd, keras.optimizers.SGD(0.1), process_set=sets[hvd.rank()])


@on_ranks(2, full=(1, 3))
def test_models_in_another_order(hvd):
    """Of one shape; what Keras counts in names may differ."""
    generator, discriminator = (
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)], name=name)
        for name in ("generator", "discriminator")
    )
    x = np.ones((8, 4), "f")
    order = [generator, discriminator]
    for network in order:
        network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        network.fit(x, x, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    if hvd.size() > 1:
        network = order[int(hvd.rank() == 1)]
        with pytest.raises(ValueError, match=r"ranks? 0(, 2)?: model=generator; rank 1: model=discriminator"):
            network.fit(x, x, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    twins = [keras.Sequential([keras.layers.Dense(4)]) for _ in range(2 + hvd.rank())]
    twins[-1].compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    twins[-1].fit(x, x, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])


@on_ranks(2, full=(3,))
def test_numbers_of_groups(hvd):
    with pytest.raises(ValueError, match=r"different optimizers.*rank 0: groups=1; ranks? 1(, 2)?: groups=2"):
        train(hvd, keras.optimizers.SGD(0.1), groups=min(1 + hvd.rank(), 2))


@pytest.mark.parametrize("wrap", [False, True])
@on_ranks(2, full=(3,))
def test_hyperparameters(hvd, wrap):
    optimizer = keras.optimizers.SGD(0.1, momentum=0.5 + 0.25 * (hvd.rank() == 1))
    if wrap:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    with pytest.raises(ValueError, match=r"ranks? 0(, 2)?: .*momentum=0\.5; rank 1: .*momentum=0\.75"):
        train(hvd, optimizer)


@on_ranks(2)
def test_learning_rates_and_names_may_differ(hvd):
    """The first rank's rate comes to all; the names count what a rank has made before."""
    name = None if hvd.rank() == 0 else "another"
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    network = train(hvd, keras.optimizers.SGD(0.1 * (1 + hvd.rank()), name=name))
    np.testing.assert_allclose(network.optimizer.learning_rate.numpy(), 0.1)
    train(hvd, keras.optimizers.SGD(rate))


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """Without `get_config`, as in TensorFlow's Transformer tutorial."""

    def __init__(self, width, steps):
        super().__init__()
        self.width, self.steps = tf.cast(width, "float32"), steps

    def __call__(self, step):
        return tf.math.rsqrt(self.width) * tf.minimum(1.0, tf.cast(step, "float32") / self.steps)


class OwnSGD(keras.optimizers.SGD):
    def get_config(self):
        raise NotImplementedError


@on_ranks(2)
def test_a_schedule_and_an_optimizer_without_a_configuration(hvd):
    """Their classes are compared."""
    train(hvd, keras.optimizers.LossScaleOptimizer(OwnSGD(Warmup(64, 4))))
    train(hvd, keras.optimizers.SGD(Warmup(64, 4)))
    with pytest.raises(ValueError, match=r"rank 0: optimizer=SGD.*; rank 1: optimizer=OwnSGD"):
        train(hvd, [keras.optimizers.SGD, OwnSGD][hvd.rank()](0.1))


def two_layers(frozen):
    keras.utils.set_random_seed(7)
    layers = [keras.layers.Dense(4, use_bias=False, trainable=each != frozen) for each in range(2)]
    return keras.Sequential([keras.Input((4,)), *layers])


@pytest.mark.parametrize("built", [True, False])
@on_ranks(2, full=(3,))
def test_layers_of_one_shape_of_which_ranks_freeze_different_ones(hvd, built):
    network = two_layers(frozen=int(hvd.rank() == 1))
    if not built:
        network = keras.Sequential(network.layers)
    network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x = np.ones((8, 4), "f")
    with pytest.raises(
        ValueError,
        match=r"ranks? 0(, 2)?: weight 0 of shape \(4, 4\) frozen.*rank 1: weight 0 of shape \(4, 4\) trained",
    ):
        network.fit(x, x, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])


@pytest.mark.parametrize("how", ["local", "groups"])
@on_ranks(2)
def test_other_local_layers_and_groups(hvd, how):
    network = two_layers(frozen=None)
    mine = network.layers[hvd.rank()]
    if how == "local":
        optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=mine)
    else:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), groups=[mine.trainable_weights])
    network.compile(optimizer, "mse")
    x = np.ones((8, 4), "f")
    before = "local weights stand before weight"
    wanted = rf"rank 0: {before} 0 of the others; rank 1: {before} 1 of the others"
    if how == "groups":
        wanted = "rank 0: weight 0"
    with pytest.raises(ValueError, match=rf"different roles of weights.*{wanted}"):
        network.fit(x, x, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])


@on_ranks(2)
def test_optimizers_in_a_dictionary_are_broadcast_too(hvd):
    network = two_layers(frozen=None)
    network.more = {"second": hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))}
    network.more["second"].build(network.trainable_variables)
    network.more["second"].momentums[0].assign(np.full((4, 4), 1.0 + hvd.rank(), "f"))
    network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x = np.ones((8, 4), "f")
    network.fit(x, x, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    np.testing.assert_array_equal(network.more["second"].momentums[0].numpy(), np.ones((4, 4)))


@on_ranks(2)
def test_restoring_different_epochs_leaves_local_layers_alone(hvd):
    network = two_layers(frozen=None)
    local = network.layers[1]
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.0), local_layers=local)
    network.compile(optimizer, "mse")
    local.kernel.assign(np.full((4, 4), 1.0 + hvd.rank()))
    stop = keras.callbacks.EarlyStopping("mine", mode="min", patience=9, restore_best_weights=True)

    class Mine(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["mine"] = epoch * (
                1 - 2 * hvd.rank()
            )  # the first epoch is the best on rank 0, the last on rank 1

    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=local.trainable_weights)
    x = np.ones((8, 4), "f")
    network.fit(x, x, verbose=0, epochs=3, callbacks=[first, Mine(), stop])
    np.testing.assert_array_equal(local.kernel.numpy(), np.full((4, 4), 1.0 + hvd.rank()))


@on_ranks(2, full=(3,))
def test_a_callback_that_one_rank_lacks(hvd):
    more = [hvd.callbacks.MetricAverageCallback()] if hvd.rank() == 0 else []
    with pytest.raises(
        ValueError, match=r"different callbacks of tfddl.*rank 0: 2\. MetricAverage.*ranks? 1(, 2)?: none of"
    ):
        train(hvd, keras.optimizers.SGD(0.1), *more)


class OwnAdapted(keras.layers.Layer):
    """Not a layer of Keras, so nothing of it is read."""

    mean = variance = tf.constant(["no number"])
    bin_boundaries = ((1.0, 2.0), (3.0,))

    def adapt(self, data):
        raise NotImplementedError

    def get_vocabulary(self, kind):
        raise NotImplementedError


@on_ranks(2)
def test_layers_adapted_to_different_data(hvd):
    words, numbers = ["b a", "c"], np.array([[0.0], [1.0], [5.0]], "f") * 3

    def adapted(kind, own, **options):
        layer = kind(**options)
        layer.adapt(own)
        return layer

    layers = keras.layers
    for kind, own, remedy, options in (
        (layers.TextVectorization, words[hvd.rank() :], "set_vocabulary", {}),
        (layers.StringLookup, words[hvd.rank() :], "set_vocabulary", {}),
        (layers.StringLookup, np.array([b"caf\xe9", b"caf\xe8"])[hvd.rank() :], "set_vocabulary", {}),
        (layers.Discretization, numbers[hvd.rank() :], "bin_boundaries=", {"num_bins": 2}),
        (layers.Normalization, numbers[hvd.rank() :], r"mean=.*variance=", {"axis": None}),
    ):
        layer = adapted(kind, own, **options)
        network = keras.Sequential([keras.Sequential([layer]), layers.Dense(1)])
        name = hvd.broadcast_object(layer.name, 0)
        wanted = rf"{remedy}.*layer '{name}' \({kind.__name__}\) of rank 1 differs from that of rank 0"
        with pytest.raises(ValueError, match=wanted):
            check_adapted(network, "test.adapted", global_process_set, lambda weight: False)
    network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(ValueError, match=wanted):
        network.fit(
            numbers, numbers, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        )
    near = adapted(layers.Normalization, numbers * (1 + 1e-6 * hvd.rank()), axis=None)
    same = [near, layers.Normalization(), adapted(layers.TextVectorization, words)]
    numbered = adapted(layers.IntegerLookup, [7, 8, 8])
    if hvd.rank() == 1:
        numbered.lookup_table = None  # one rank that cannot read a layer does not leave the others waiting
    same += [numbered, layers.StringLookup(vocabulary=["b", "a"]), OwnAdapted()]
    check_adapted(keras.Sequential(same), "test.adapted", global_process_set, lambda weight: False)
    with pytest.raises(ValueError, match="of rank 1 differs"):
        check_adapted(
            keras.Sequential(same[hvd.rank() :]), "test.adapted", global_process_set, lambda weight: False
        )


@on_ranks(2)
def test_local_tables_with_words_of_their_own(hvd):
    words = [["a", "b", "c"], ["d", "e"]][hvd.rank()]
    lookup, scale = keras.layers.StringLookup(vocabulary=words), keras.layers.Normalization(axis=None)
    scale.adapt(np.array([1.0, 2.0]) * (1 + hvd.rank()))
    table = keras.layers.Embedding(lookup.vocabulary_size(), 2)
    inputs = keras.Input((), dtype="string")
    network = keras.Model(inputs, keras.layers.Dense(1)(scale(table(lookup(inputs)))))
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=table)
    network.compile(optimizer, "mse")
    own = [*table.weights, *scale.weights]
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=own)
    network.fit(tf.constant(words[:2]), np.ones((2, 1)), verbose=0, callbacks=[callback])
    assert table.embeddings.shape[0] == 4 - hvd.rank()


@on_ranks(2)
def test_metrics_read_before_they_are_averaged(hvd):
    average, stop = hvd.callbacks.MetricAverageCallback(), keras.callbacks.EarlyStopping("loss", patience=3)
    with support.logged() as said:
        train(hvd, keras.optimizers.SGD(0.1), average, stop)
        assert not said
        train(hvd, keras.optimizers.SGD(0.1), stop, average)
    assert len(said) == (hvd.rank() == 0)
    assert all("EarlyStopping comes before MetricAverageCallback" in text for text in said)


@on_ranks(2, full=(1, 3))
def test_gradients_of_different_variables_of_one_shape(hvd):
    a, b = keras.Variable([1.0]), keras.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))
    optimizer.apply([keras.ops.ones([1]), None], [a, b])
    np.testing.assert_allclose([a.numpy(), b.numpy()], [[0.5], [1]])
    if hvd.size() > 1:
        mine = [None, keras.ops.ones([1])] if hvd.rank() == 1 else [keras.ops.ones([1]), None]
        wanted = r"gradients \[0\] of 2.*gradients \[1\] of 2"
        with pytest.raises(tf.errors.FailedPreconditionError, match=wanted):
            optimizer.apply(mine, [a, b])
