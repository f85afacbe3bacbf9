"""The callbacks: equal from the first step on, metrics of the whole job, and errors on all ranks at once."""

import re
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow
from tests.keras import support


def compiled(hvd, network, optimizer=None, **options):
    optimizer = optimizer or hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    network.compile(optimizer, "mse", **options)
    return network


def mine(hvd, steps=support.STEPS):
    return support.shard(support.data(hvd.size(), steps=steps), hvd.rank(), hvd.size())


class AtFirstStep(keras.callbacks.Callback):
    """Keeps the weights that the first step starts from."""

    weights = None

    def on_train_batch_begin(self, batch, logs=None):
        if self.weights is None:
            self.weights = support.weights(self.model)


@pytest.mark.parametrize("root", [0, 1])
@on_ranks(2, full=(3,))
def test_the_roots_variables(hvd, root):
    network = compiled(hvd, support.model(seed=10 + hvd.rank()))
    expected = support.weights(support.model(seed=10 + root))
    seen = AtFirstStep()
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(root), seen]
    network.fit(*mine(hvd), batch_size=support.BATCH, verbose=0, callbacks=callbacks)
    np.testing.assert_array_equal(seen.weights, expected)
    support.check_equal_on_all_ranks(hvd, [*network.variables, *network.optimizer.variables])


@on_ranks(2)
def test_optimizer_state_comes_along(hvd):
    """Only the root has trained before: its slots, iterations and learning rate go to all."""
    network = compiled(hvd, support.model(), keras.optimizers.Adam(0.02 * (1 + hvd.rank())))
    if hvd.rank() == 0:
        network.fit(*support.data(1), verbose=0)
    hvd.DistributedOptimizer(network.optimizer)
    network.train_function = None
    network.fit(
        *mine(hvd, steps=1),
        batch_size=support.BATCH,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    assert network.optimizer.iterations.numpy() == 2
    np.testing.assert_allclose(network.optimizer.learning_rate.numpy(), 0.02, rtol=1e-6)
    support.check_equal_on_all_ranks(hvd, [*network.variables, *network.optimizer.variables])


@on_ranks(2)
def test_random_layers_and_local_variables_keep_their_own(hvd):
    keras.utils.set_random_seed(20 + hvd.rank())
    layers = [
        keras.Input((support.FEATURES,)),
        keras.layers.Dense(4),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(3),
    ]
    network = compiled(hvd, keras.Sequential(layers))
    network.optimizer.learning_rate = 0.0
    seeds = [v for v in network.variables if v.path.endswith("seed_generator_state")]
    assert len(seeds) == 1
    first, local = seeds[0].numpy().copy(), network.layers[0].kernel.numpy().copy()
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[network.layers[0].kernel])
    callback.register_local_var(network.layers[-1].bias.value)
    network.layers[-1].bias.assign(np.full(3, hvd.rank(), "float32"))
    callback.set_model(network)
    callback.on_train_begin()
    np.testing.assert_array_equal(seeds[0].numpy(), first)
    np.testing.assert_array_equal(network.layers[0].kernel.numpy(), local)
    np.testing.assert_array_equal(network.layers[-1].bias.numpy(), np.full(3, hvd.rank()))
    support.check_equal_on_all_ranks(hvd, [network.layers[-1].kernel])


@on_ranks(2)
def test_what_local_variables_takes(hvd):
    def kept(local_variables):
        network = compiled(hvd, support.model())
        network.layers[0].kernel.assign(np.full_like(network.layers[0].kernel, hvd.rank()))
        chosen = local_variables(network.layers[0].kernel)
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, chosen)
        callback.set_model(network)
        callback.on_train_begin()
        return bool((network.layers[0].kernel.numpy() == hvd.rank()).all())

    assert (
        kept(lambda kernel: kernel) and kept(lambda kernel: kernel.value) and kept(lambda kernel: (kernel,))
    )
    for wrong in ("/cpu:0", ["kernel"]):  # Horovod's second argument is a device
        with pytest.raises(ValueError, match=r"local_variables="):
            hvd.callbacks.BroadcastGlobalVariablesCallback(0, wrong)


class Late(keras.Model):
    """Makes its layer in the first call."""

    def __init__(self):
        super().__init__()
        self.first, self.last = keras.layers.Dense(4), None

    def call(self, x):
        if self.last is None:
            self.last = keras.layers.Dense(support.CLASSES)
        return self.last(self.first(x))


@pytest.mark.parametrize("eager", [False, True])
@on_ranks(2)
def test_a_model_built_by_its_first_step(hvd, eager):
    keras.utils.set_random_seed(30 + hvd.rank())
    network = compiled(hvd, Late(), run_eagerly=eager)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    network.fit(*mine(hvd), batch_size=support.BATCH, verbose=0, callbacks=callbacks)
    assert len(network.variables) == 4
    support.check_equal_on_all_ranks(hvd, [*network.variables, *network.optimizer.variables])


@on_ranks(2)
def test_different_models_are_refused_on_every_rank(hvd):
    network = compiled(hvd, support.model())
    if hvd.rank() == 1:
        network = compiled(hvd, keras.Sequential([keras.Input((support.FEATURES,)), keras.layers.Dense(3)]))
    with pytest.raises(
        ValueError,
        match=r"rank 0: \d+ variables, 0\. float32\(6, 8\) kernel, .* more; rank 1: \d+ variables, 0\. float32",
    ):
        network.fit(*mine(hvd), verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])


@pytest.mark.parametrize("wrap", [False, True])
@on_ranks(2)
def test_a_plain_optimizer_is_refused(hvd, wrap):
    optimizer = keras.optimizers.SGD()
    network = compiled(
        hvd, support.model(), keras.optimizers.LossScaleOptimizer(optimizer) if wrap else optimizer
    )
    with pytest.raises(
        ValueError, match=r"optimizer=hvd.DistributedOptimizer\(optimizer\).*Received: optimizer="
    ):
        network.fit(*mine(hvd), verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])


@on_ranks(1)
def test_a_plain_optimizer_is_fine_alone(hvd):
    network = compiled(hvd, support.model(), keras.optimizers.SGD(0.01))
    network.fit(*mine(hvd), verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])


class OwnStep(keras.Model):
    """A train_step of its own, with or without our tape."""

    def __init__(self, tape):
        super().__init__()
        self.layer, self.tape = keras.layers.Dense(support.CLASSES), tape

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        x, y = data
        with self.tape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@on_ranks(2)
def test_a_train_step_of_ones_own(hvd):
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    network = compiled(hvd, OwnStep(hvd.DistributedGradientTape), keras.optimizers.SGD(0.01))
    for _ in range(2):
        network.fit(*mine(hvd), verbose=0, callbacks=callbacks)
    support.check_equal_on_all_ranks(hvd, network.variables)
    network = compiled(hvd, OwnStep(lambda tape: tape), keras.optimizers.SGD(0.01))
    with pytest.raises(ValueError, match="train_step combined no gradients in its first step"):
        network.fit(*mine(hvd), verbose=0, callbacks=callbacks)


@on_ranks(2)
def test_resume_on_the_root_only(hvd, tmp_path):
    """BackupAndRestore finds a backup on rank 0; both ranks go on from there, and no line is about its learning rate."""
    network = compiled(hvd, support.model())
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    epochs = []
    count = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epochs.append(epoch))

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt
            self.model.optimizer.learning_rate = 0.001

    def backup():
        return [keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))] if hvd.rank() == 0 else []

    options = {"batch_size": support.BATCH, "epochs": 4, "verbose": 0}
    with pytest.raises(KeyboardInterrupt):
        network.fit(*mine(hvd), callbacks=[*backup(), broadcast, Stop()], **options)
    after = support.weights(network)
    network = compiled(hvd, support.model(seed=40 + hvd.rank()))
    seen = AtFirstStep()
    with support.logged() as said:
        network.fit(*mine(hvd), callbacks=[*backup(), broadcast, seen, count], **options)
    assert epochs == [2, 3]
    np.testing.assert_array_equal(seen.weights, after)
    support.check_equal_on_all_ranks(hvd, [*network.variables, *network.optimizer.variables])
    assert not said


class Logs(keras.callbacks.Callback):
    """Adds to the logs what differs by rank."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank

    def on_epoch_end(self, epoch, logs=None):
        logs.update(zebra=float(self.rank), ant=np.float32(10 * self.rank), count=self.rank, text="kept")


@on_ranks(2, full=(1, 3))
def test_metrics_are_averaged_in_place(hvd):
    network = compiled(hvd, support.model(), metrics=["mae"])
    after, at_end = [], {}
    callbacks = [
        keras.callbacks.LambdaCallback(on_train_end=at_end.update),
        Logs(hvd.rank()),
        hvd.callbacks.MetricAverageCallback(),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: after.append(dict(logs))),
    ]
    history = network.fit(
        *mine(hvd), validation_data=mine(hvd), epochs=2, verbose=0, callbacks=callbacks
    ).history
    mean = (hvd.size() - 1) / 2
    for epoch in range(2):
        assert (
            after[epoch]["zebra"] == mean
            and after[epoch]["ant"] == 10 * mean
            and after[epoch]["count"] == mean
        )
        assert after[epoch]["text"] == "kept"
        assert all(history[key][epoch] == value for key, value in after[epoch].items())
    for key in ("loss", "val_loss", "mae", "val_mae"):
        assert at_end[key] == after[1][key]
        values = hvd.allgather(tf.constant(history[key], tf.float64)[None], name="history").numpy()
        assert (values == values[0]).all()


@on_ranks(2)
def test_the_average_is_the_whole_jobs_loss(hvd):
    arrays = support.data(2)
    whole, network = compiled(hvd, support.model()), compiled(hvd, support.model())
    expected = whole.evaluate(*arrays, verbose=0)
    network.optimizer.learning_rate = 0.0
    x, y = support.shard(arrays, hvd.rank(), 2)
    history = network.fit(x, y, verbose=0, callbacks=[hvd.callbacks.MetricAverageCallback()]).history
    np.testing.assert_allclose(history["loss"][0], expected, rtol=1e-5)


@on_ranks(2)
def test_a_metric_that_one_rank_lacks_is_named_on_all(hvd):
    network = compiled(hvd, support.model())
    options = {"validation_data": mine(hvd)} if hvd.rank() == 0 else {}
    with pytest.raises(ValueError, match=r"rank 0: val_loss, metric val_loss \[.*; rank 1: none of these"):
        network.fit(*mine(hvd), verbose=0, callbacks=[hvd.callbacks.MetricAverageCallback()], **options)


@pytest.mark.parametrize("broadcast", ["broadcast_variables", slow("broadcast_")])
@on_ranks(2, full=(1,))
def test_fit_without_a_broadcast_is_told(hvd, broadcast):
    """Each model anew: what another one has got is none of its business."""
    for _ in range(2):
        with support.logged() as said:
            network = support.model()
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
            support.fit(network, optimizer, support.data(1), support.BATCH)
            network.evaluate(*support.data(1), verbose=0)
            assert len(said) == (hvd.size() > 1 and hvd.rank() == 0)
            assert not said or "no BroadcastGlobalVariablesCallback" in said[0]
            said.clear()
            getattr(hvd, broadcast)(network.variables, 0)
            support.fit(network, optimizer, support.data(1), support.BATCH)
            assert not said


class TapeModel(keras.Model):
    """Combines gradients in the last batch of an epoch."""

    def __init__(self, hvd):
        super().__init__()
        self.hvd, self.dense, self.batches = hvd, keras.layers.Dense(1), 0

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        tape = tf.GradientTape()
        self.batches += 1
        if self.batches == 2:
            tape = self.hvd.DistributedGradientTape(tape)
        with tape:
            loss = self.compute_loss(data[0], data[1], self(data[0], training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@on_ranks(2, full=(1, 3))
def test_fit_on_shards_that_combines_no_gradients_is_told(hvd):
    """Once; not after evaluate, nor for a train_step with a tape, nor if each rank shards for itself."""
    x, y = np.ones([8 * hvd.size(), support.FEATURES], "float32"), np.ones([8 * hvd.size(), 1], "float32")
    with support.logged() as said:
        mine = hvd.data.shard(x, y)
        network = TapeModel(hvd)
        network.compile("sgd", "mse", run_eagerly=True)
        network.evaluate(*mine, verbose=0)
        network.fit(*mine, batch_size=4, verbose=0)
        assert not said
        for _ in range(2):
            network = keras.Sequential([keras.layers.Dense(1)])
            network.compile("sgd", "mse")
            network.fit(*mine, batch_size=4, epochs=2, verbose=0)
            assert len(said) == (hvd.size() > 1 and hvd.rank() == 0)
            assert not said or "fit has combined no gradients in its first epoch" in said[0]


@on_ranks(2, full=(1, 3))
def test_a_root_that_does_not_exist(hvd):
    """Where the callback is made, or where training begins if that was before init."""
    kind = hvd.callbacks.BroadcastGlobalVariablesCallback
    wanted = rf"from 0 to {hvd.size() - 1} here\. Received: root_rank=7, in a job of {hvd.size()}"
    for root in (7, -1):
        with pytest.raises(ValueError, match=wanted.replace("7", str(root))):
            kind(root)
    with pytest.raises(TypeError, match=r"Received: root_rank='0'"):
        kind("0")
    with mock.patch("tfddl.runtime.basics.is_initialized", return_value=False):
        early = kind(7)
    network = support.model()
    network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    with pytest.raises(
        ValueError, match=rf"one of {re.escape(str(list(range(hvd.size()))))}. Received: root_rank=7"
    ):
        network.fit(*support.data(1), verbose=0, callbacks=[early])
