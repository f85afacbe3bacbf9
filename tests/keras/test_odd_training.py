"""What real scripts do to `fit`: weights of samples and classes, steps of their own, two optimizers, odd batches."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow
from tests.keras import support


def callbacks(hvd):
    return [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]


def plain(hvd, optimizer):
    """Leaves an optimizer alone: what one process trains with."""
    return optimizer


def distributed(hvd, optimizer):
    return hvd.DistributedOptimizer(optimizer)


def compare(hvd, train, rtol=1e-10):
    """`train(distribute, arrays, batch, callbacks)` on shards and, on rank 0, on the whole."""
    arrays = support.data(hvd.size(), "float64")
    weights = np.arange(len(arrays[0])) % 5 / 2.0
    everything = [*arrays, weights]
    mine = support.shard(everything, hvd.rank(), hvd.size())
    network = train(distributed, mine, support.BATCH, callbacks(hvd))
    if hvd.rank() == 0:
        whole = train(plain, everything, support.BATCH * hvd.size(), [])
        start = support.weights(support.model("float64"))
        assert np.abs(support.weights(whole) - start).max() > 1e-3
        np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=rtol, atol=1e-12)
    support.check_equal_on_all_ranks(hvd, network.variables)


@pytest.mark.parametrize("eager", [False, True])
@on_ranks(2, full=(1, 3))
def test_sample_weights(hvd, eager):
    """Keras divides by the number of rows, not by the sum of weights: equal shards give the whole's mean."""

    def train(distribute, arrays, batch, callbacks):
        network = support.model("float64")
        network.compile(
            distribute(hvd, keras.optimizers.SGD(0.05)),
            keras.losses.MeanSquaredError(dtype="float64"),
            weighted_metrics=["mae"],
            run_eagerly=eager,
        )
        x, y, w = arrays
        network.fit(x, y, sample_weight=w, batch_size=batch, shuffle=False, verbose=0, callbacks=callbacks)
        return network

    compare(hvd, train)


@on_ranks(2, full=(1, 3))
def test_class_weights(hvd):
    def train(distribute, arrays, batch, callbacks):
        network = support.model("float64")
        network.compile(
            distribute(hvd, keras.optimizers.SGD(0.05)),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64"),
        )
        classes = arrays[1].argmax(axis=1)
        weights = {0: 0.5, 1: 2.0, 2: 1.0}
        network.fit(
            arrays[0],
            classes,
            class_weight=weights,
            batch_size=batch,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )
        return network

    compare(hvd, train, rtol=1e-6)  # Keras' class weights are float32.


class Subclass(keras.Model):
    """`train_step` of its own around the compiled loss and the optimizer."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("executed", [1, 2])
@on_ranks(2, full=(1, 3))
def test_a_subclass_with_its_own_step(hvd, executed, eager):
    def train(distribute, arrays, batch, callbacks):
        network = Subclass(support.model("float64"))
        network.compile(
            distribute(hvd, keras.optimizers.Adam(0.01)),
            keras.losses.MeanSquaredError(dtype="float64"),
            run_eagerly=eager,
            steps_per_execution=executed,
        )
        network.fit(*arrays[:2], batch_size=batch, shuffle=False, verbose=0, callbacks=callbacks)
        return network

    compare(hvd, train)


class Adversaries(keras.Model):
    """Two networks against each other, each with an optimizer."""

    def __init__(self):
        super().__init__(dtype="float64")
        keras.utils.set_random_seed(5)
        self.maker = keras.layers.Dense(support.FEATURES, dtype="float64")
        self.judge = keras.layers.Dense(1, dtype="float64")
        self.maker.build((None, support.FEATURES))
        self.judge.build((None, support.FEATURES))
        self.built = True

    def compile(self, first, second):
        super().compile()
        self.first, self.second = first, second

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            judged = tf.reduce_mean(
                tf.nn.softplus(self.judge(self.maker(x))) + tf.nn.softplus(-self.judge(x))
            )
        variables = self.judge.trainable_variables
        self.first.apply_gradients(zip(tape.gradient(judged, variables), variables, strict=True))
        with tf.GradientTape() as tape:
            made = tf.reduce_mean(tf.nn.softplus(-self.judge(self.maker(x))))
        variables = self.maker.trainable_variables
        self.second.apply_gradients(zip(tape.gradient(made, variables), variables, strict=True))
        return {"judged": judged, "made": made}


@on_ranks(2)
def test_a_step_that_trains_a_variable_of_its_own(hvd):
    """Keras 3 does not track it, and so the optimizer is built by the step. All ranks get the root's, not with DiLoCo."""

    class Scaled(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.scale = tf.Variable(1.0 + hvd.rank())

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.dense(x) * self.scale - y) ** 2)
            variables = [*self.trainable_variables, self.scale]
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    network = Scaled()
    network.build((None, 3))
    network.dense.build((None, 3))
    network.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)))
    x = np.full([8, 3], 1.0 + hvd.rank(), "float32")
    network.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=callbacks(hvd))
    support.check_equal_on_all_ranks(hvd, [*network.variables, network.scale, *network.optimizer.variables])
    assert network.scale.numpy() != 1.0
    local = hvd.callbacks.DiLoCo(every=2)
    for listed in ([*callbacks(hvd), local], [local]):
        network.compile(keras.optimizers.Adam(0.1))
        with pytest.raises(
            ValueError, match=r"make them with self\.add_weight.* Received: Variable:0 of shape \(\)"
        ):
            network.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=listed)


@on_ranks(2, full=(1, 3))
def test_two_optimizers_in_one_step(hvd):
    def train(distribute, arrays, batch, callbacks):
        network = Adversaries()
        network.compile(
            distribute(hvd, keras.optimizers.Adam(0.01)),
            distribute(hvd, keras.optimizers.SGD(0.1, momentum=0.9)),
        )
        network.fit(*arrays[:2], batch_size=batch, shuffle=False, verbose=0, callbacks=callbacks)
        return network

    arrays = support.data(hvd.size(), "float64")
    whole = train(plain, arrays, support.BATCH * hvd.size(), [])
    network = train(distributed, support.shard(arrays, hvd.rank(), hvd.size()), support.BATCH, callbacks(hvd))
    assert np.abs(support.weights(whole) - support.weights(Adversaries())).max() > 1e-3
    np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-9, atol=1e-12)
    support.check_equal_on_all_ranks(hvd, [*network.variables, *network.first.variables])


@pytest.mark.parametrize("which", [slow("judge"), "maker", slow("both")])
@on_ranks(2, full=(1, 3))
def test_one_of_two_optimizers_is_plain(hvd, which):
    """Its weights come apart, which a warning says, once, with its name; local weights may."""
    network = Adversaries()
    arrays = support.shard(support.data(hvd.size(), "float64"), hvd.rank(), hvd.size())
    optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1)]
    for number in {"judge": [0], "maker": [1], "both": [0, 1]}[which]:
        hvd.DistributedOptimizer(optimizers[number])
    network.compile(*optimizers)

    def fit(local=None):
        first = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=local)
        with support.logged() as said:
            network.fit(*arrays[:2], batch_size=support.BATCH, epochs=2, verbose=0, callbacks=[first])
        return [line for line in said if "were equal on all ranks" in line]

    said = fit()
    other, apart = {"judge": ("second (SGD)", network.maker), "maker": ("first (Adam)", network.judge)}.get(
        which, ("", None)
    )
    assert len(said) == (apart is not None and hvd.size() > 1 and hvd.rank() == 0)
    assert not said or f"took steps: model.{other}; weights that differ: " in said[0]
    assert not said or said[0].endswith(f"{apart.kernel.path}, {apart.bias.path}")
    if apart is not None:
        assert not fit(apart.trainable_variables)


@on_ranks(2)
def test_only_an_optimizer_that_fit_does_not_use_is_distributed(hvd):
    network = support.model()
    network.compile("sgd", "mse")
    network.other = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    with pytest.raises(ValueError, match="optimizer is not distributed"):
        network.fit(*support.data(1), verbose=0, callbacks=callbacks(hvd))


@on_ranks(2)
def test_an_optimizer_that_comes_in_the_middle_of_a_fit_has_to_be_distributed(hvd):
    """A layer that comes with it begins with the same weights on all ranks."""

    class Compiles(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                keras.utils.set_random_seed(hvd.rank())
                self.model.pop()
                self.model.add(keras.layers.Dense(1))
                self.model.compile(optimizer, "mse")
                self.model.make_train_function(force=True)

    network, optimizer = support.model(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    network.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    data = support.shard(support.data(2), hvd.rank(), 2)
    network.fit(*data, epochs=2, verbose=0, callbacks=[*callbacks(hvd), Compiles()])
    support.check_equal_on_all_ranks(hvd, network.variables)
    optimizer = keras.optimizers.SGD(0.01)
    with pytest.raises(ValueError, match="optimizer is not distributed"):
        network.fit(*data, epochs=2, verbose=0, callbacks=[*callbacks(hvd), Compiles()])


@on_ranks(2, full=(3,))
def test_an_empty_batch_on_one_rank_counts_as_zeros(hvd):
    """Its gradient is zero, so the average over ranks is smaller: as documented, and equal on all."""
    arrays = support.data(hvd.size(), "float64", steps=1)
    mine = support.shard(arrays, hvd.rank(), hvd.size())
    start, gradients = support.model("float64"), []
    for rank in range(1, hvd.size()):
        x, y = support.shard(arrays, rank, hvd.size())
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError(dtype="float64")(y, start(x))
        gradients.append(tape.gradient(loss, start.trainable_variables))
    rows = 0 if hvd.rank() == 0 else support.BATCH

    def batches():
        yield mine[0][:rows], mine[1][:rows]

    signature = tuple(tf.TensorSpec((None, size), tf.float64) for size in (support.FEATURES, support.CLASSES))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    network = support.model("float64")
    network.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), keras.losses.MeanSquaredError(dtype="float64")
    )
    network.fit(dataset, steps_per_epoch=1, verbose=0, callbacks=callbacks(hvd)[:1])
    for index, variable in enumerate(network.trainable_variables):
        mean = sum(each[index] for each in gradients) / hvd.size()
        expected = start.trainable_variables[index].numpy() - mean.numpy()
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-10, atol=1e-12)
    support.check_equal_on_all_ranks(hvd, network.variables)


@on_ranks(2, full=(3,))
def test_nan_goes_everywhere_and_is_no_wait(hvd):
    """NaN on one rank without loss scaling: all ranks hold NaN in the same step, as one process would."""
    x, y = support.data(hvd.size())
    y[support.BATCH * hvd.size() + 1] = np.nan
    network = support.model()
    network.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    mine = support.shard((x, y), hvd.rank(), hvd.size())
    assert np.isnan(mine[1]).any() == (hvd.rank() == 1)
    network.fit(*mine, batch_size=support.BATCH, shuffle=False, verbose=0, callbacks=callbacks(hvd)[:1])
    assert np.isnan(support.weights(network)).all()
    nans = hvd.allreduce(tf.constant(1), op=hvd.Sum, name="alive")
    assert nans == hvd.size()


@on_ranks(2)
def test_subclasses_with_hooks_by_their_older_names(hvd):
    """Keras calls `on_batch_begin` and `on_batch_end` in its own `on_train_batch_begin` and `on_train_batch_end`."""
    called = []

    def with_hooks(kind, *arguments, **options):
        hooks = {
            name: lambda self, batch, logs=None, name=name: called.append((kind.__name__, name, batch))
            for name in ("on_batch_begin", "on_batch_end")
        }
        return type(kind.__name__, (kind,), hooks)(*arguments, **options)

    state = SimpleNamespace(batch=0, commit=lambda: None)
    kinds = {
        hvd.callbacks.BroadcastGlobalVariablesCallback: (0,),
        hvd.callbacks.LearningRateWarmupCallback: (0.1,),
        hvd.callbacks.MetricAverageCallback: (),
        hvd.elastic.UpdateBatchStateCallback: (state,),
        hvd.elastic.CommitStateCallback: (state,),
        hvd.callbacks.LocalSGD: (2,),
        hvd.callbacks.StopTogetherCallback: (),
    }
    network = support.model()
    network.compile(keras.optimizers.SGD(0.1), "mse")
    listed = [with_hooks(kind, *arguments) for kind, arguments in kinds.items()]
    network.fit(*support.data(1, steps=1), batch_size=2, verbose=0, callbacks=listed)
    for kind in kinds:
        mine = [(name, batch) for name_of_kind, name, batch in called if name_of_kind == kind.__name__]
        assert mine == [(name, batch) for batch in (0, 1) for name in ("on_batch_begin", "on_batch_end")], (
            kind
        )
