"""DataParallel: programs that it refuses, and its rules beside the numbers."""

import contextlib
import copy
import dataclasses
import gc
import io
import os
import re
import time
import weakref
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras import support
from tests.keras.parallel.programs import batch_normalization
from tests.keras.parallel.small import X, Y, parallel, small_model
from tfddl.keras.parallel import files, part
from tfddl.runtime import basics


def fixed_batch_size(hvd):
    network = keras.Sequential([keras.Input(batch_shape=(8, 4)), keras.layers.Dense(1)])
    network.compile(loss="mse")
    network.fit(X, Y, verbose=0)


def stateful(hvd):
    network = keras.Sequential([keras.layers.LSTM(3, stateful=True)])
    network.compile(loss="mse")
    network.fit(X[..., None], np.ones([8, 3]), verbose=0)


def no_reduction(hvd):
    small_model(loss=keras.losses.MeanSquaredError(reduction=None)).fit(X, Y, verbose=0)


def rows_together(hvd):
    small_model(loss=keras.losses.Dice()).fit(X, Y, verbose=0)


def strategy(hvd):
    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        small_model().fit(X, Y, verbose=0)


def distributed_optimizer(hvd):
    small_model(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD())).fit(X, Y, verbose=0)


def our_callback(hvd):
    small_model().fit(X, Y, verbose=0, callbacks=[hvd.callbacks.MetricAverageCallback()])


def other_first_dimensions(hvd):
    data = tf.data.Dataset.from_tensors((X, Y[:7]))
    small_model().fit(data, verbose=0)


def other_batches(hvd):
    small_model().fit(X + hvd.rank(), Y, verbose=0)


def other_single_batches(hvd):
    small_model().train_on_batch(X + hvd.rank(), Y)


class OwnOptimizer(keras.Sequential):
    """Its `train_step` uses an optimizer that the model does not hold."""

    def __init__(self):
        super().__init__([keras.Input((4,)), keras.layers.Dense(1)])
        self.held = [lambda: optimizer]
        optimizer = keras.optimizers.SGD()
        self.compile()

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        weights = self.trainable_weights
        self.held[0]().apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


ROWS = np.arange(32.0, dtype="float32").reshape(8, 4) / 32


def optimizer_of_another_object(hvd):
    OwnOptimizer().fit(ROWS, Y, verbose=0)


def optimizer_of_another_object_in_single_batches(hvd):
    network = OwnOptimizer()
    network.train_on_batch(ROWS, Y)
    network.train_on_batch(ROWS, Y)


REFUSED = {
    fixed_batch_size: "keras.Input((4,))",
    stateful: "stateful=False",
    no_reduction: "reduction='sum_over_batch_size'",
    rows_together: "Write axis=(1, 2, 3)",
    strategy: "Leave the strategy and its scope out",
    distributed_optimizer: "distributes itself already, with its optimizer: start it without --auto",
    our_callback: "distributes itself already, with tfddl's callbacks: start it without --auto",
    optimizer_of_another_object: "make each optimizer an attribute of the model: self.g_optimizer =",
    optimizer_of_another_object_in_single_batches: "weights that differ: ",
    other_first_dimensions: "first dimension",
    other_batches: "training batch 0 in the first step differs from rank 0's on rank 1. If the program gives",
    other_single_batches: "batch 0 of train_on_batch differs from rank 0's on rank 1",
}


@pytest.mark.parametrize("program", sorted(program.__name__ for program in REFUSED))
@on_ranks(2)
def test_a_program_that_cannot_be_divided(hvd, program):
    (run,) = (each for each in REFUSED if each.__name__ == program)
    with parallel(hvd), pytest.raises(Exception, match="") as caught:
        run(hvd)
    assert REFUSED[run] in str(caught.value), caught.value


class Late(keras.layers.Layer):
    """Makes its random layer in `build`, as MultiHeadAttention does."""

    def build(self, shape):
        self.noise = keras.layers.GaussianNoise(1.0)

    def call(self, inputs):
        return self.noise(inputs, training=True)


class Noisy(keras.Model):
    """Draws numbers in each step, by a layer and without."""

    def __init__(self):
        super().__init__()
        self.drawn, self.late = tf.Variable(tf.zeros([3]), trainable=False), Late()
        self.built = True

    def train_step(self, data):
        self.drawn.assign([self.late(tf.zeros([])), keras.random.normal([]), tf.random.normal([])])
        return {"drawn": self.drawn[0]}


@pytest.mark.parametrize("method", ["fit", "train_on_batch"])
@on_ranks(2)
def test_random_numbers_of_a_step_differ_by_rank(hvd, method):
    """Also in the first execution. Numbers drawn outside of a step are equal."""
    with parallel(hvd):
        network = Noisy()
        network.compile(steps_per_execution=2 if method == "fit" else 1)
        if method == "fit":
            network.fit(X, batch_size=4, verbose=0)
        else:
            network.train_on_batch(X)
        drawn = hvd.allgather_object(network.drawn.numpy())
        outside = hvd.allgather_object([float(keras.random.normal([])), float(network.late(tf.zeros([])))])
    assert not np.isclose(*drawn).any(), drawn
    assert outside[0] == outside[1]


@on_ranks(2)
def test_float16_overflows_where_that_of_one_process_does(hvd):
    """The gradients of a row are those of one process, not N times as much."""
    one_row = np.eye(8, 1, dtype="float32")

    def train():
        layer = keras.layers.Dense(1, kernel_initializer="zeros", dtype="mixed_float16")
        network = keras.Sequential([keras.Input((4,)), layer])
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-3), initial_scale=2.0**22)
        network.compile(optimizer=scaled, loss="mse")
        network.fit(X, one_row, batch_size=8, epochs=9, verbose=0)
        return float(scaled.dynamic_scale.numpy())

    keras.utils.set_random_seed(3)
    alone = train()
    with parallel(hvd):
        assert train() == alone < 2.0**22


@on_ranks(2)
def test_a_loop_after_fit_takes_the_mean(hvd):
    optimizer = keras.optimizers.SGD(1.0)
    with parallel(hvd):
        network = small_model(optimizer=optimizer)
        network.fit(X, Y, verbose=0)
        kernel = network.trainable_weights[0]
        kernel.assign(tf.zeros([4, 1]))
        grads = [tf.fill([4, 1], 1.0 + hvd.rank()), tf.zeros([1])]
        optimizer.apply_gradients(zip(grads, network.trainable_weights, strict=True))
    np.testing.assert_array_equal(kernel.numpy(), np.full([4, 1], -1.5, "float32"))


@on_ranks(2)
def test_single_batches_begin_with_the_weights_of_rank_0(hvd):
    keras.utils.set_random_seed(hvd.rank())
    network = small_model()
    with parallel(hvd):
        network.train_on_batch(X, Y)
    support.check_equal_on_all_ranks(hvd, network.variables)


def scalar_loss(hvd):
    small_model(loss=lambda true, predicted: tf.sqrt(tf.reduce_mean((true - predicted) ** 2))).fit(
        X, Y, verbose=0
    )


def scalar_metric(hvd):
    small_model(metrics=[lambda true, predicted: tf.reduce_max(predicted)]).fit(X, Y, verbose=0)


class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(self, true, predicted, sample_weight=None):
        self.total.assign(tf.maximum(self.total, tf.reduce_max(predicted)))

    def result(self):
        return self.total


def own_metric(hvd):
    small_model(metrics=[Largest()]).fit(X, Y, verbose=0)


class Total(keras.Sequential):
    def __init__(self, layers):
        super().__init__(layers)
        self.sum = keras.metrics.Sum(name="sum")

    def train_step(self, data):
        self.sum.update_state(tf.reduce_sum(data[0]))
        return super().train_step(data)


def summed_metric(hvd):
    network = Total([keras.Input((4,)), keras.layers.Dense(1)])
    network.compile(loss="mse")
    network.fit(X, Y, verbose=0)


class Summed(keras.Sequential):
    def train_step(self, data):
        keras.losses.MeanSquaredError(reduction="sum", name="squares")(data[1], self(data[0]))
        return super().train_step(data)


def summed_loss(hvd):
    """Also one of compile(), without a warning."""
    network = Summed([keras.Input((4,)), keras.layers.Dense(1)])
    network.compile(loss=keras.losses.MeanSquaredError(reduction="sum"))
    network.fit(X, Y, verbose=0)


class RowsOnTape(keras.Sequential):
    def train_step(self, data):
        weights = self.trainable_weights
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(data[0])
            rows = self(data[0])
            tasks = tf.stack([tf.reduce_sum(rows), tf.reduce_max(rows)])
        tape.gradient(rows, data[0])  # as in a gradient penalty
        self.of_tasks, self.of_rows = tape.gradient(tasks, weights)[1], tape.gradient(rows, weights)[1]
        return super().train_step(data)


def rows_on_tape(hvd):
    """A number for each row counts for all ranks; not one for each task."""
    network = RowsOnTape([keras.Input((4,)), keras.layers.Dense(1)])
    network.compile(loss="mse", run_eagerly=True)
    network.fit(X, Y, batch_size=8, verbose=0)
    np.testing.assert_array_equal([*network.of_tasks, *network.of_rows], [5, 8])


class Adds(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(tf.reduce_sum(inputs))
        return inputs


def added_loss(hvd):
    network = keras.Sequential([keras.layers.Dense(1), Adds()])
    network.compile(loss="mse")
    network.fit(X, Y, verbose=0)


@dataclasses.dataclass
class WithState(keras.losses.Loss):
    """A moving average, as in DINO, and noise. A dataclass has no hash."""

    rate: float

    def __post_init__(self):
        super().__init__()
        self.center, self.seeds = tf.Variable(0.0), keras.random.SeedGenerator(1)

    def call(self, true, predicted):
        self.center.assign_add(self.rate)
        noise = keras.random.normal(tf.shape(predicted), seed=self.seeds)
        return tf.reduce_sum((true - predicted - self.center + noise) ** 2, -1)


class Remembers(keras.layers.Layer):
    """Keeps its last input, in two dtypes."""

    def build(self, shape):
        self.number, self.whole = (
            self.add_weight(shape=shape[1:], dtype=dtype, initializer="zeros", trainable=False)
            for dtype in ("float32", "int32")
        )

    def call(self, inputs):
        self.number.assign(inputs[-1])
        self.whole.assign(tf.cast(100 * inputs[-1], "int32"))
        return inputs


def own_state(hvd):
    """Validation changes it, too."""
    network = keras.Sequential([keras.Input((4,)), Remembers(), keras.layers.Dense(1)])
    network.compile(loss="mse")
    network.fit(ROWS, Y, batch_size=8, verbose=0, validation_data=(ROWS, Y))
    support.check_equal_on_all_ranks(hvd, network.variables)
    number, whole = network.layers[0].weights
    np.testing.assert_array_equal(number, (ROWS[3] + ROWS[7]) / 2)
    np.testing.assert_array_equal(whole, tf.cast(100 * ROWS[3], "int32"))


def contrastive_loss(hvd):
    """One number for each row; besides, others without a warning."""

    def contrastive(true, predicted):
        alike = predicted @ tf.transpose(predicted)
        return -tf.linalg.diag_part(tf.nn.log_softmax(alike))

    with_state = WithState(0.5)
    for loss in (lambda true, predicted: tf.reduce_sum((true - predicted) ** 2, -1), with_state, contrastive):
        small_model(loss=loss).fit(X, Y, batch_size=len(X), verbose=0)
    assert with_state.center.numpy() == 0.5
    np.testing.assert_array_equal(with_state.seeds.state, [1, 1])


@pytest.mark.parametrize(
    ("program", "quoted"),
    [
        ("contrastive_loss", "the loss 'contrastive' compares the rows.* hvd.allgather in the loss"),
        ("scalar_loss", "a loss function of this program returns one number"),
        ("scalar_metric", "a metric function of this program returns one number"),
        ("summed_metric", "counts as a sum over rows: .* update_state.1.0.. Received: metric 'sum'"),
        ("summed_loss", "calls a loss with reduction='sum', .* Received: 'squares'"),
        ("rows_on_tape", "the gradient of a loss with one number for each row, .* tf.reduce_mean"),
        (
            "own_state",
            "a layer of this program changes weights by its inputs.* Received: weights that differ: ",
        ),
        ("own_metric", "a metric with an update_state of its own is .* Received: 'largest'"),
        ("added_loss", "a layer of this program passes to add_loss one number"),
    ],
)
@on_ranks(2)
def test_a_loss_that_is_no_mean_over_rows_has_a_warning(hvd, program, quoted):
    with parallel(hvd), support.logged() as warnings:
        globals()[program](hvd)
    assert [bool(re.search(quoted, warning)) for warning in warnings] == [True] * (hvd.rank() == 0)


@on_ranks(2)
def test_statistics_of_batch_normalization_may_stay_the_ranks_own(hvd):
    """Until the end of an epoch."""
    with parallel(hvd, synchronize_batch_normalization=False), support.logged() as warnings:
        network, _ = batch_normalization()
    quoted = "weights that differ: .*moving_mean, .*moving_variance"
    assert [bool(re.search(quoted, warning)) for warning in warnings] == [True] * (hvd.rank() == 0)
    support.check_equal_on_all_ranks(hvd, network.variables)


@on_ranks(2)
def test_rank_0_writes(hvd, tmp_path):
    directory = hvd.broadcast_object(str(tmp_path), 0)
    path = os.path.join(directory, "{}.keras")
    with parallel(hvd):
        network = small_model()
        callbacks = [
            keras.callbacks.ModelCheckpoint(path.format("best")),
            keras.callbacks.ModelCheckpoint(f"{directory}/folder{hvd.rank()}/{{epoch}}.keras"),
            keras.callbacks.CSVLogger(f"{directory}/log.csv"),
        ]
        network.fit(X, Y, verbose=0, epochs=2, callbacks=callbacks)
        time.sleep(0.5 * hvd.rank())
        if not os.path.exists(path.format("last")):  # rank 0 writes when all ranks have asked
            network.save(path.format("last"))
        keras.saving.save_model(network, path.format(f"model{hvd.rank()}"))
        network.save_weights(f"{directory}/rank{hvd.rank()}.weights.h5")
        again = keras.models.load_model(path.format("last"))
        np.testing.assert_array_equal(again.get_weights()[0], network.get_weights()[0])
        with pytest.raises(Exception, match="no-such"):
            network.save(f"{directory}/no-such/model.keras")
        if hvd.rank() == 1:
            for own, theirs in (("folder1/2", "folder0/2"), ("model1", "model0")):
                received = f"'{path.format(theirs)}' on process 0; '{path.format(own)}' on process 1"
                with pytest.raises(FileNotFoundError, match=f"the same path.* Received: {received}"):
                    keras.models.load_model(path.format(own))
    assert sorted(os.listdir(directory)) == [
        "best.keras",
        "folder0",
        "last.keras",
        "log.csv",
        "model0.keras",
        "rank0.weights.h5",
    ]
    with open(f"{directory}/log.csv") as log:
        assert len(log.readlines()) == 3


@on_ranks(3)
def test_hosts_that_share_a_home_download_once(hvd, tmp_path):
    """Ranks 0 and 1 are as on hosts of their own."""
    home = hvd.broadcast_object(str(tmp_path), 0)
    turns = []

    def get_file():
        turns.append(sorted(os.listdir(home)))
        time.sleep(0.2)
        with open(f"{home}/{hvd.rank()}", "w"):
            return hvd.rank()

    with mock.patch.object(basics, "local_rank", lambda: hvd.rank() // 2):
        assert files.by_first_rank_of_host(get_file)() == hvd.rank()
    assert turns == [["0", "1"][: hvd.rank()]]


@on_ranks(2)
def test_a_callback_that_changes_weights_of_one_rank_has_a_warning(hvd):
    """Also if the other ranks have no callback. One that changes weights on all ranks has none."""

    def double(batch, logs):
        network.layers[0].kernel.assign(2 * network.layers[0].kernel)

    doubling = keras.callbacks.LambdaCallback(on_train_batch_end=double)
    with parallel(hvd), support.logged() as warnings:
        network = small_model()
        network.fit(X, Y, verbose=0, callbacks=[doubling])
        assert warnings == []
        network.fit(X, Y, verbose=0, callbacks=[doubling] * hvd.rank())
    quoted = f"outside of `if hvd.rank.*Received: weights that differ: {network.layers[0].kernel.path}$"
    assert [bool(re.search(quoted, warning)) for warning in warnings] == [True] * (hvd.rank() == 0)


@on_ranks(2)
def test_a_callback_loads_what_it_has_saved(hvd, tmp_path):
    path = f"{hvd.broadcast_object(str(tmp_path), 0)}/now.weights.h5"

    class SaveAndLoad(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if hvd.rank() == 0:
                time.sleep(0.5)
            self.model.save_weights(path)
            self.model.load_weights(path)

    with parallel(hvd):
        small_model().fit(X, Y, verbose=0, callbacks=[SaveAndLoad()])


@on_ranks(2)
def test_optimizers_that_are_compiled_again(hvd):
    """Keras wraps one anew in each compile, and others are copies; those of models that are gone are freed."""
    optimizer = keras.optimizers.SGD(0.01)
    with parallel(hvd):
        network = small_model()
        for _ in range(2):
            network.compile(keras.optimizers.LossScaleOptimizer(optimizer), "mse")
            network.fit(X, Y, verbose=0)
        network.compile(copy.deepcopy(optimizer), "mse")
        network.fit(X, Y, verbose=0)
        gone = weakref.ref(network.optimizer)
        del network
        keras.utils.clear_session()
        gc.collect()
        assert gone() is None


@on_ranks(2)
def test_evaluate_and_predict_are_whole_on_every_rank(hvd):
    with parallel(hvd):
        network = small_model()
        network.fit(X, Y, verbose=0)
        if hvd.rank() == 1:  # no other rank takes part
            assert network.predict(X[:3], verbose=0).shape == (3, 1)
            assert network.evaluate(X, Y, verbose=0) >= 0


@on_ranks(2)
def test_single_batches_in_callbacks_are_whole(hvd):
    """The rows of test_on_batch count once in the metrics of the epoch, as on one process."""
    shapes = []

    def ask(batch, logs):
        if batch == 0:
            shapes.append(network.predict_on_batch(X).shape)
            network.test_on_batch(X, Y + 1)

    network = small_model(optimizer=keras.optimizers.SGD(0.0))
    network.layers[0].kernel.assign(np.zeros([4, 1]))
    data = {"x": X, "y": Y, "batch_size": 4, "verbose": 0}
    asking = [keras.callbacks.LambdaCallback(on_train_batch_end=ask)]
    alone = network.fit(**data, callbacks=asking).history["loss"]
    with parallel(hvd):
        assert network.fit(**data, callbacks=asking).history["loss"] == alone
    assert shapes == [(8, 1)] * 2


@on_ranks(2)
def test_a_callback_may_ask_the_model_for_its_strategy(hvd):
    """KerasTuner does, to learn whether it saves on this process alone."""
    said = []

    class Asks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            asked = self.model.distribute_strategy
            said.append((asked.num_replicas_in_sync, asked.extended.should_checkpoint))
            with pytest.raises(AttributeError, match="no_such_name"):
                _ = asked.no_such_name

    with parallel(hvd):
        small_model().fit(X, Y, verbose=0, callbacks=[Asks()])
    assert said == [(1, True)]


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
            small_model().fit(X, Y, verbose=0, epochs=3, callbacks=callbacks)
        history = small_model().fit(
            X, Y, verbose=0, epochs=3, callbacks=[keras.callbacks.BackupAndRestore(directory)]
        )
    assert history.epoch == [1, 2]


@pytest.mark.parametrize("eager", [True, False])
@on_ranks(2)
def test_a_function_that_several_steps_call(hvd, eager):
    """It is traced for each function around it, in eager mode for other numbers of rows, and outside of a step."""
    traces = []
    around = (lambda step: step) if eager else tf.function

    @tf.function
    def inner(x):
        now = part.current()
        traces.append(now)
        return x * (-1.0 if now is None else now.weight(tf.float32))

    def step(x):
        with part.under_way(part.take(x)):
            return inner(tf.constant(3.0))

    with parallel(hvd):
        results = [around(step)(tf.zeros([rows])) for rows in (4, 5, 4)]
        results.append(around(inner)(tf.constant(3.0)))
    odd = 3.0 * (2 + (hvd.rank() == 1)) / 5
    np.testing.assert_allclose(results, [1.5, odd, 1.5, -3.0], rtol=1e-6)
    assert len(traces) == (3 if eager else 4)


@on_ranks(2)
def test_the_line_about_the_first_batch(hvd):
    for rows, words in (
        (1, "1 on each of 2 processes, which are more than its rows"),
        (5, "5 = 2 + 3"),
        (8, "8 = 2 x 4"),
    ):
        with parallel(hvd), contextlib.redirect_stdout(io.StringIO()) as printed:
            small_model().fit(X[:rows], Y[:rows], batch_size=8, verbose=2)
        assert (f"tfddl: global batch {words}\n" in printed.getvalue()) == (hvd.rank() == 0)
