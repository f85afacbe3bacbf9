"""Schedules and warm-up: rates batch by batch as Horovod sets them, and momentum that follows."""

import contextlib
import io

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras import support
from tfddl import _compat

RATE = 0.08


class Rates(keras.callbacks.Callback):
    """Keeps the rate that each batch is trained with."""

    def __init__(self):
        super().__init__()
        self.rates, self.epochs = [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append(epoch)

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(_compat.learning_rate(self.model.optimizer))


def fit(
    hvd, callbacks, optimizer=None, rate=RATE, steps=4, seen=None, network=None, compiling=None, **options
):
    """Trains on this rank's shard; returns the rates batch by batch, the history and the model."""
    network = network or support.model()
    network.compile(
        hvd.DistributedOptimizer(optimizer or keras.optimizers.SGD(rate)), "mse", **(compiling or {})
    )
    seen = seen or Rates()
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    mine = support.shard(support.data(hvd.size(), steps=steps), hvd.rank(), hvd.size())
    history = network.fit(
        *mine, batch_size=support.BATCH, verbose=0, callbacks=[first, *callbacks, seen], **options
    )
    return seen.rates, history.history, network


def warmup(size, steps, epochs, of, executed=1):
    """Horovod's rates: 1/size * (epoch * (size - 1) / warmup_epochs + 1) at the end of each batch."""
    ends = [e + min(b + executed, steps) / steps for e in range(epochs) for b in range(0, steps, executed)]
    return [RATE / size * (min(end, of) * (size - 1) / of + 1) for end in ends]


@on_ranks(2, full=(1, 3))
def test_warmup(hvd):
    rates, history, _ = fit(hvd, [hvd.callbacks.LearningRateWarmupCallback(RATE, warmup_epochs=2)], epochs=4)
    expected = warmup(hvd.size(), 4, 4, of=2)
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    np.testing.assert_allclose(history["lr"], expected[3::4], rtol=1e-6)
    assert rates[-1] == np.float32(RATE) and (hvd.size() == 1 or rates[0] < 0.7 * RATE)


@on_ranks(2)
def test_warmup_says_when_it_is_over(hvd):
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        fit(hvd, [hvd.callbacks.LearningRateWarmupCallback(RATE, warmup_epochs=2, verbose=1)], epochs=3)
    line = "\nEpoch 2: finished gradual learning rate warmup to 0.08.\n"
    assert written.getvalue() == (line if hvd.rank() == 0 else "")


@on_ranks(2)
def test_warmup_with_several_steps_per_execution_reaches_the_rate(hvd):
    warm = hvd.callbacks.LearningRateWarmupCallback(RATE, warmup_epochs=2)
    rates, _, _ = fit(hvd, [warm], steps=6, epochs=3, compiling={"steps_per_execution": 4})
    np.testing.assert_allclose(rates, warmup(2, 6, 3, of=2, executed=4), rtol=1e-6)
    assert rates[3] == np.float32(RATE)


@on_ranks(2)
def test_warmup_of_half_an_epoch_does_not_overshoot(hvd):
    rates, _, _ = fit(hvd, [hvd.callbacks.LearningRateWarmupCallback(RATE, warmup_epochs=1.5)], epochs=3)
    np.testing.assert_allclose(rates, warmup(2, 4, 3, of=1.5), rtol=1e-6)


@on_ranks(2)
def test_epochs_are_absolute(hvd):
    """A training that starts in the middle of the warm-up goes on there."""
    warm = hvd.callbacks.LearningRateWarmupCallback(RATE, warmup_epochs=3)
    rates, _, _ = fit(hvd, [warm], epochs=4, initial_epoch=2)
    np.testing.assert_allclose(rates, warmup(2, 4, 4, of=3)[8:], rtol=1e-6)


@on_ranks(2)
def test_staircase_and_scopes(hvd):
    schedule = hvd.callbacks.LearningRateScheduleCallback
    callbacks = [
        schedule(RATE, lambda epoch: 1.0 - 0.1 * epoch, end_epoch=2),
        schedule(RATE, 0.5, start_epoch=3, end_epoch=6),
    ]
    rates, history, _ = fit(hvd, callbacks, rate=0.5, steps=2, epochs=7)
    factors = [1.0, 0.9, 0.9, 1.0, 0.5, 0.25, 0.25]
    np.testing.assert_allclose(rates, np.repeat(factors, 2) * RATE, rtol=1e-6)
    np.testing.assert_allclose(history["lr"], np.multiply(factors, RATE), rtol=1e-6)


@on_ranks(2)
def test_gradual(hvd):
    epochs = []

    def multiplier(epoch):
        epochs.append(epoch)
        return 1.0 / (1 + epoch)

    rates, _, _ = fit(
        hvd, [hvd.callbacks.LearningRateScheduleCallback(RATE, multiplier, staircase=False)], epochs=2
    )
    assert epochs == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75]
    np.testing.assert_allclose(rates, [RATE / (1 + epoch) for epoch in epochs], rtol=1e-6)


def reference(rates, momentum, nesterov, gradients):
    """SGD whose velocity holds no rate: v = m v + g, w -= lr v. What momentum correction should amount to."""
    weight, velocity = np.float64(1.0), np.float64(0.0)
    for rate, gradient in zip(rates, gradients, strict=True):
        velocity = momentum * velocity + gradient
        step = momentum * velocity + gradient if nesterov else velocity
        weight -= rate * step
    return weight


class Line(keras.Model):
    """Its gradient is its input."""

    def __init__(self):
        super().__init__(dtype="float64")
        self.w = self.add_weight(shape=(), initializer="ones", dtype="float64")

    def call(self, x):
        return self.w * tf.reduce_mean(x)


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("accumulate", [None, 2])
@pytest.mark.parametrize("nesterov", [False, True])
@on_ranks(2, full=(1,))
def test_momentum_correction(hvd, nesterov, accumulate, wrap):
    """Momentum that holds a rate behaves, corrected, as if it held gradients alone."""
    gradients = np.random.default_rng(5).normal(size=12)
    micro = accumulate or 1
    optimizer = keras.optimizers.SGD(
        RATE, momentum=0.9, nesterov=nesterov, gradient_accumulation_steps=accumulate
    )
    if wrap:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)
    network, seen = Line(), Rates()
    network.compile(hvd.DistributedOptimizer(optimizer), loss=lambda y, p: p)
    schedule = hvd.callbacks.LearningRateScheduleCallback(RATE, lambda epoch: (1, 3, 0.5)[epoch % 3])
    x = np.repeat(gradients, micro)[:, None]
    x = x + (1 if hvd.rank() else -1) * (hvd.size() > 1)  # The mean over two ranks is the gradient.

    def batches():
        for row in x:
            yield row[None], row[None]

    signature = tf.TensorSpec((1, 1), tf.float64)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=(signature, signature))
    network.fit(dataset.repeat(), steps_per_epoch=3 * micro, epochs=4, verbose=0, callbacks=[schedule, seen])
    expected = reference(seen.rates[::micro], 0.9, nesterov, gradients)
    np.testing.assert_allclose(network.w.numpy(), expected, rtol=1e-6)
    support.check_equal_on_all_ranks(hvd, network.variables)


@on_ranks(1)
def test_which_slots_follow(hvd):
    from tfddl.keras.callbacks import momentum_correction

    for optimizer, follows in (
        (keras.optimizers.SGD(RATE, momentum=0.9), True),
        (keras.optimizers.RMSprop(RATE, momentum=0.9), True),
        (keras.optimizers.RMSprop(RATE), False),
        (keras.optimizers.Adam(RATE), False),
    ):
        momentum_correction.follow(optimizer, 1.0, 3.0)  # Not built: nothing there to follow.
        v = keras.Variable([1.0])
        optimizer.apply([tf.constant([2.0])], [v])
        slots = [variable for variable in optimizer.variables if variable.name.endswith("_momentum")]
        before = [variable.numpy() for variable in optimizer.variables]
        momentum_correction.follow(optimizer, 1.0, 3.0)
        for variable, value in zip(optimizer.variables, before, strict=True):
            scaled = follows and any(variable is slot for slot in slots)
            np.testing.assert_allclose(variable.numpy(), value * (3.0 if scaled else 1.0), rtol=1e-6)
        momentum_correction.follow(optimizer, 0.0, 3.0)
        if follows:
            assert slots and np.abs(slots[0].numpy()).max() > 0
            np.testing.assert_allclose(
                slots[0].numpy(), before[optimizer.variables.index(slots[0])] * 3, rtol=1e-6
            )


@on_ranks(2)
def test_without_momentum_correction(hvd):
    """Left alone, the momentum keeps the old rate, and the weights come out different."""
    results = []
    for correct in (True, False):
        schedule = hvd.callbacks.LearningRateScheduleCallback(RATE, 0.1, momentum_correction=correct)
        optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
        results.append(support.weights(fit(hvd, [schedule], optimizer, epochs=2)[2]))
    assert np.abs(results[0] - results[1]).max() > 1e-3


@pytest.mark.parametrize("wrap", [False, True])
@on_ranks(2)
def test_an_optimizer_that_computes_its_rate_is_refused(hvd, wrap):
    callbacks = hvd.callbacks
    for rate in (keras.optimizers.schedules.CosineDecay(0.1, 10), lambda: 0.1):
        for callback in (
            callbacks.LearningRateWarmupCallback(RATE),
            callbacks.LearningRateScheduleCallback(RATE, 0.1),
        ):
            optimizer = keras.optimizers.SGD(rate)
            if wrap:
                optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
            with pytest.raises(
                ValueError, match=r"(?s)Callback sets the learning rate.*computes its own.*warmup_target"
            ):
                fit(hvd, [callback], optimizer)


@on_ranks(1)
def test_arguments(hvd):
    for bad in (None, "fast", keras.optimizers.schedules.CosineDecay(0.1, 10)):
        with pytest.raises(ValueError, match="Received: initial_lr="):
            hvd.callbacks.LearningRateScheduleCallback(bad, 1.0)
    with pytest.raises(ValueError, match="Received: initial_lr=None"):
        hvd.callbacks.LearningRateWarmupCallback(None)


@on_ranks(2)
def test_a_number_of_batches_that_nobody_knows(hvd):
    network = support.model()
    network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(RATE)), "mse")
    x, y = support.shard(support.data(2, steps=4), hvd.rank(), 2)

    def batches():
        for start in range(0, len(x), support.BATCH):
            yield x[start : start + support.BATCH], y[start : start + support.BATCH]

    with pytest.raises(ValueError, match="LearningRateWarmupCallback does not know how many batches"):
        network.fit(batches(), verbose=0, callbacks=[hvd.callbacks.LearningRateWarmupCallback(RATE)])
    seen = Rates()
    warm = hvd.callbacks.LearningRateWarmupCallback(RATE, warmup_epochs=1, steps_per_epoch=4)
    network.fit(batches(), verbose=0, callbacks=[warm, seen])
    np.testing.assert_allclose(seen.rates, warmup(2, 4, 1, of=1), rtol=1e-6)
