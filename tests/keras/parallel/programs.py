"""Programs for one process, of the kind that keras.io shows. Each makes its data and its model, trains, and returns both."""

import keras
import numpy as np
import tensorflow as tf

from tfddl import _compat

ROWS = 51  # with batches of 16 the last one has three rows, with batches of 10 one row


def _rows(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=(ROWS, *shape)).astype("float32")


def _labels(classes, seed=1):
    return np.random.default_rng(seed).integers(0, classes, ROWS)


def _dense(units=1, **compiled):
    network = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2"),
            keras.layers.Dense(units),
        ]
    )
    network.compile(**{"optimizer": keras.optimizers.Adam(0.02), "loss": "mse", **compiled})
    return network


def _fit(network, *data, **options):
    return network, network.fit(*data, **{"batch_size": 16, "epochs": 2, "verbose": 0, **options}).history


def arrays():
    """With metrics and a part of the data for validation."""
    return _fit(_dense(metrics=["mae"]), _rows(6), _rows(1, seed=1), validation_split=0.3)


def class_weights():
    network = _dense(
        3,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        weighted_metrics=["accuracy"],
    )
    return _fit(network, _rows(6), _labels(3), class_weight={0: 1.0, 1: 3.0, 2: 0.2})


def sample_weights():
    weights = np.random.default_rng(2).uniform(size=ROWS).astype("float32")
    return _fit(_dense(), _rows(6), _rows(1, seed=1), sample_weight=weights)


def mean_with_sample_weight():
    weights = np.random.default_rng(2).uniform(size=ROWS).astype("float32")
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    return _fit(_dense(loss=loss), _rows(6), _rows(1, seed=1), sample_weight=weights)


def sum_over_batch():
    loss = keras.losses.MeanSquaredError(reduction="sum")
    return _fit(_dense(loss=loss, optimizer=keras.optimizers.SGD(1e-3)), _rows(6), _rows(1, seed=1))


def batched_dataset():
    """tf.data that yields batches, repeats, and has no length. Training and validation draw from one shuffle in turn."""
    data = tf.data.Dataset.from_tensor_slices((_rows(6), _rows(1, seed=1))).shuffle(ROWS).batch(16).repeat()
    # TensorFlow reads ahead by default: then the order of the draws depends on how busy the machine is.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.parallel_batch = False
    data = data.with_options(options)
    return _fit(_dense(), data, batch_size=None, steps_per_epoch=3, validation_data=data, validation_steps=2)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        part = slice(16 * index, 16 * index + 16)
        return _rows(6)[part], _rows(1, seed=1)[part]


def py_dataset():
    return _fit(_dense(), Batches(), batch_size=None)


def lstm_with_mask():
    """Rows of different lengths: the loss is a mean over the steps that count."""
    words = np.random.default_rng(3).integers(1, 20, (ROWS, 7))
    lengths = np.random.default_rng(4).integers(1, 8, ROWS)
    words[np.arange(7) >= lengths[:, None]] = 0
    network = keras.Sequential(
        [
            keras.Input((7,), dtype="int32"),
            keras.layers.Embedding(20, 4, mask_zero=True),
            keras.layers.LSTM(5, return_sequences=True),
            keras.layers.Dense(1),
        ]
    )
    network.compile(optimizer=keras.optimizers.Adam(0.02), loss="mse", metrics=["mae"])
    return _fit(network, words, _rows(7, 1), batch_size=10)


def batch_normalization():
    images = _rows(8, 8, 3)
    network = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(2),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=loss, metrics=["accuracy"])
    return _fit(network, images, _labels(2))


def several_outputs():
    def mean(true, predicted):
        return keras.losses.Huber(reduction="sum")(true, predicted) / tf.cast(tf.shape(true)[0], tf.float32)

    entry = keras.Input((6,))
    hidden = keras.layers.Dense(8, activation="relu")(entry)
    network = keras.Model(
        entry,
        {
            "size": keras.layers.Dense(1, name="size")(hidden),
            "kind": keras.layers.Dense(3, name="kind")(hidden),
        },
    )
    network.compile(
        optimizer="rmsprop",
        loss={"size": mean, "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        loss_weights={"size": 0.3, "kind": 1.0},
        metrics={"kind": ["accuracy"]},
    )
    return _fit(network, _rows(6), {"size": _rows(1, seed=1), "kind": _labels(3)})


class Subclassed(keras.Model):
    """Unbuilt until its first batch, with a loss of its own layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(8, activation="gelu"), keras.layers.Dense(1)

    def call(self, inputs):
        hidden = self.first(inputs)
        self.add_loss(1e-2 * tf.reduce_mean(tf.square(hidden)))
        return self.second(hidden)


def subclassed():
    network = Subclassed()
    network.compile(optimizer=keras.optimizers.Adam(0.02), loss="mse")
    return _fit(network, _rows(6), _rows(1, seed=1))


def batches_of_a_fixed_size():
    """A model without an input shape, on batches whose size tf.data knows; then on others."""
    network = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    network.compile(optimizer=keras.optimizers.Adam(0.02), loss="mse")
    data = tf.data.Dataset.from_tensor_slices((_rows(6), _rows(1, seed=1)))
    network, first = _fit(network, data.batch(16, drop_remainder=True), batch_size=None)
    network, second = _fit(network, data.batch(7, drop_remainder=True), batch_size=None)
    return network, {"first": first["loss"], "second": second["loss"]}


def activity_regularizer():
    network = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, activity_regularizer="l2"), keras.layers.Dense(1)]
    )
    network.compile(optimizer=keras.optimizers.Adam(0.02), loss="mse")
    return _fit(network, _rows(6), _rows(1, seed=1))


def several_steps_per_execution():
    return _fit(_dense(steps_per_execution=3), _rows(6), _rows(1, seed=1))


def accumulation():
    optimizer = keras.optimizers.SGD(0.05, gradient_accumulation_steps=2)
    return _fit(_dense(optimizer=optimizer), _rows(6), _rows(1, seed=1))


def jit_compiled():
    return _fit(_dense(jit_compile=True), _rows(6), _rows(1, seed=1))


def eagerly():
    return _fit(_dense(run_eagerly=True), _rows(6), _rows(1, seed=1))


def callbacks_that_decide():
    """Plateaus and an early stop, by the whole job's numbers."""
    callbacks = [
        keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=1, min_delta=0.05),
        keras.callbacks.EarlyStopping("val_loss", patience=2, min_delta=0.05, restore_best_weights=True),
    ]
    network = _dense(optimizer=keras.optimizers.SGD(0.1))
    return _fit(network, _rows(6), _rows(1, seed=1), epochs=12, callbacks=callbacks, validation_split=0.3)


class Unfreezes(keras.callbacks.Callback):
    """Compiles the model again, then gives it another optimizer."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.layers[0].trainable = True
            self.model.compile(keras.optimizers.SGD(0.05), "mse")
        if epoch == 2:
            self.model.optimizer = keras.optimizers.SGD(0.02)
        if epoch:
            self.model.make_train_function(force=True)


def other_optimizers_within_a_fit():
    network = _dense(optimizer=keras.optimizers.SGD(0.1))
    network.layers[0].trainable = False
    network.compile(keras.optimizers.SGD(0.1), "mse")
    return _fit(network, _rows(6), _rows(1, seed=1), epochs=3, callbacks=[Unfreezes()])


def two_fits():
    network, first = _fit(_dense(), _rows(6), _rows(1, seed=1))
    network, second = _fit(network, _rows(6, seed=7), _rows(1, seed=8), batch_size=5)
    return network, {"first": first["loss"], "second": second["loss"]}


def on_batches():
    network = _dense(metrics=["mae"])
    x, y = _rows(6), _rows(1, seed=1)
    losses = [network.train_on_batch(x[low : low + 16], y[low : low + 16]) for low in range(0, ROWS, 16)]
    return network, {"loss": [float(loss) for loss, _ in losses], "mae": [float(mae) for _, mae in losses]}


class Gan(keras.Model):
    """Two optimizers in a `train_step`, one with a mean over rows, one with a number for each row; one is of a model inside.

    A batch is a tuple with one element, a pair.

    SGD shows a factor of a loss, unlike Adam.
    """

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6)])
        self.discriminator = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        self.squares = keras.losses.MeanSquaredError(reduction="sum")
        self.built = True

    def compile(self):
        super().compile()
        self.d_optimizer = keras.optimizers.SGD(0.01)
        self.generator.compile(optimizer=keras.optimizers.SGD(0.003))

    def train_step(self, data):
        ((real, noise),) = data
        with tf.GradientTape() as d_tape, tf.GradientTape() as g_tape:
            fake = self.generator(noise, training=True)
            judged = self.discriminator(fake, training=True)
            accepted = self.discriminator(real, training=True)
            d_loss = self.squares(tf.ones_like(accepted), accepted) + self.squares(
                tf.zeros_like(judged), judged
            )
            d_loss /= tf.cast(tf.shape(real)[0], tf.float32)
            g_loss = tf.square(judged - 1)
        for optimizer, tape, loss, network in (
            (self.d_optimizer, d_tape, d_loss, self.discriminator),
            (self.generator.optimizer, g_tape, g_loss, self.generator),
        ):
            weights = network.trainable_weights
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"d_loss": d_loss}


def gan():
    network = Gan()
    network.compile()
    _fit(network, [_rows(6), _rows(4, seed=1)])
    return network, {}  # the log is no metric: a mean over ranks, not over rows


class Critic(Gan):
    """Several steps of one optimizer for each batch, and a metric that gets one number for it."""

    def __init__(self):
        super().__init__()
        self.tracked = keras.metrics.Mean(name="tracked")

    def train_step(self, data):
        for _ in range(2):
            logs = super().train_step(data)
            self.tracked.update_state(logs["d_loss"])
        return {"tracked": self.tracked.result()}


def critic():
    network = Critic()
    network.compile()
    return _fit(network, [_rows(6), _rows(4, seed=1)], batch_size=13)


class Recomputed(keras.Model):
    """Computes a layer's output anew for the gradients, one of two layers in a function."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(6)
        self.last = keras.layers.Dense(1)

    @tf.function
    def hidden(self, inputs):
        return tf.recompute_grad(self.second)(inputs)

    def build(self, shape):
        for layer in (self.first, self.second, self.last):
            layer.build((None, 6))

    def call(self, inputs):
        return self.last(self.hidden(tf.recompute_grad(self.first)(inputs)))


def recomputed():
    network = Recomputed()
    network.compile(optimizer=keras.optimizers.SGD(0.02), loss="mse")
    return _fit(network, _rows(6), _rows(1, seed=1))


class Center(keras.layers.Layer):
    """Subtracts a moving average of its inputs, except in training."""

    def build(self, shape):
        self.center = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False)

    def call(self, inputs, training=False):
        if training:
            self.center.assign(0.9 * self.center + 0.1 * tf.reduce_mean(inputs, 0))
            return inputs
        return inputs - self.center


def state_of_its_own():
    """The parts of a batch are equal."""
    network = keras.Sequential([keras.Input((6,)), Center(), keras.layers.Dense(1)])
    network.compile(optimizer=keras.optimizers.SGD(0.02), loss="mse")
    x, y = _rows(6)[:48], _rows(1, seed=1)[:48]
    network, history = _fit(network, x, y, batch_size=12, validation_data=(x, y))
    return network, history | {"evaluated": [network.evaluate(x, y, verbose=0)]}


def generator():
    def batches():
        for low in range(0, 96, 16):
            low %= 48
            yield _rows(6)[low : low + 16], _rows(1, seed=1)[low : low + 16]

    return _fit(_dense(), batches(), batch_size=None, steps_per_epoch=3)


class Penalty(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(0.01 * tf.reduce_sum(inputs**2, -1))
        return inputs


class F1(keras.metrics.Metric):
    """Made of metrics of Keras."""

    def __init__(self):
        super().__init__(name="f1")
        self.precision, self.recall = keras.metrics.Precision(), keras.metrics.Recall()

    def update_state(self, y_true, y_pred, sample_weight=None):
        for metric in (self.precision, self.recall):
            metric.update_state(y_true > 0, tf.sigmoid(y_pred))

    def result(self):
        return 2 / (1 / (self.precision.result() + 1e-6) + 1 / (self.recall.result() + 1e-6))


class StepOfItsOwn(keras.Sequential):
    """Scales the loss behind the tape, and returns a number that is no metric; counts its steps, and adds up rows."""

    def __init__(self, layers):
        super().__init__(layers)
        self.steps, self.total = keras.metrics.Sum(name="steps"), keras.metrics.Sum(name="total")

    def train_step(self, data):
        x, y = data
        self.steps.update_state(1)
        self.total.update_state(tf.reduce_sum(tf.abs(y)))
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        self._loss_tracker.update_state(loss, sample_weight=tf.cast(tf.shape(x)[0], tf.float32))
        grads = tape.gradient(self.optimizer.scale_loss(loss), self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        return self.compute_metrics(x, y, predicted) | {"rate": self.optimizer.learning_rate + 0.0}


def step_of_its_own():
    """The last batch has one row."""
    network = StepOfItsOwn([keras.Input((6,)), keras.layers.Dense(8), Penalty(), keras.layers.Dense(1)])
    network.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse", metrics=["mae", F1()])
    return _fit(network, _rows(6), _rows(1, seed=1), batch_size=10)


class StepsAsFunctions(keras.Sequential):
    """One step is a function, the other calls one."""

    def train_step(self, data):
        return self.trained(data)

    @tf.function
    def trained(self, data):
        return super().train_step(data)

    @tf.function
    def test_step(self, data):
        return super().test_step(data)


def steps_as_functions():
    """Batches of three sizes, in three functions of Keras."""
    network = StepsAsFunctions([keras.Input((6,)), keras.layers.Dense(1)])
    network.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    x, y = _rows(6), _rows(1, seed=1)
    network, history = _fit(network, x, y, validation_data=(x, y))
    for rows in (16, 5):
        network.train_on_batch(x[:rows], y[:rows])
    return network, history | {"evaluated": [network.evaluate(x, y, verbose=0)]}


def _known_reductions():
    try:
        keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    except ValueError:  # Keras 3.4
        return ()
    return (mean_with_sample_weight,)


PROGRAMS = {
    program.__name__: program
    for program in (
        *_known_reductions(),
        *([activity_regularizer] if _compat.divides_activity_losses() else []),
        accumulation,
        arrays,
        batch_normalization,
        batches_of_a_fixed_size,
        batched_dataset,
        callbacks_that_decide,
        class_weights,
        critic,
        eagerly,
        gan,
        generator,
        jit_compiled,
        lstm_with_mask,
        on_batches,
        other_optimizers_within_a_fit,
        py_dataset,
        recomputed,
        sample_weights,
        several_outputs,
        *([step_of_its_own] if _compat.aggregates_added_losses() else []),
        several_steps_per_execution,
        state_of_its_own,
        steps_as_functions,
        subclassed,
        sum_over_batch,
        two_fits,
    )
}
