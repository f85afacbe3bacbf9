"""DataParallel with Python generators: rank 0 reads them, for training and for validation."""

import contextlib
import random
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras.parallel.programs import generator
from tests.keras.parallel.small import X, Y, parallel, small_model
from tfddl import _compat


@on_ranks(2)
def test_only_rank_0_reads_a_generator(hvd):
    """The random numbers that it draws on rank 0 count on all ranks."""
    read = []

    def batches():
        while True:
            read.append(1)
            yield X * np.random.rand(), Y * random.random()

    with parallel(hvd):
        small_model().fit(batches(), steps_per_epoch=3, epochs=2, verbose=0)
        drawn = np.random.rand(), random.random()
        generator()
    assert bool(read) == (hvd.rank() == 0)
    assert hvd.allgather_object(drawn) == [drawn] * 2


@on_ranks(2)
def test_evaluate_and_predict_go_on_with_a_generator_of_fit(hvd):
    """Rank 0's generator has advanced, the others' have not. Also in a callback, while `fit` reads the generator."""
    batches = rows(99)
    found = []

    def evaluate():
        found.append(network.evaluate(batches, steps=3, verbose=0))
        found.append(network.predict(batches, steps=2, verbose=0).tolist())

    with parallel(hvd):
        network = small_model(optimizer=keras.optimizers.SGD(0.01), steps_per_execution=2)
        evaluating = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: evaluate())
        network.fit(batches, steps_per_epoch=4, epochs=2, verbose=0, callbacks=[evaluating])
        evaluate()
        network.evaluate(rows(5), verbose=0)
        found.append([network.evaluate(batches, verbose=0), next(batches, None) is None or hvd.rank() > 0])
    assert hvd.allgather_object(found) == [found] * 2


@on_ranks(2)
def test_an_endless_generator_that_is_slower_than_a_step(hvd):
    """All ranks take part in the same broadcasts, also in those of the batches that Keras has read ahead."""
    read = []

    def batches():
        while True:
            time.sleep(0.1)
            read.append(1)
            yield X, Y

    with parallel(hvd):
        network = small_model()
        for times in range(1, 4):
            network.fit(batches(), steps_per_epoch=2, verbose=0)
            assert len(read) == times * (2 + _compat.batches_before_training()) * (hvd.rank() == 0)


@on_ranks(2)
def test_a_batch_with_none(hvd):
    """Without a target, or without weights of the rows; of a generator and of tf.data."""

    class Alone(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            out = self.dense(x)
            self.add_loss(keras.ops.mean(keras.ops.square(out)))
            return out

    with parallel(hvd):
        network = Alone()
        network.compile("sgd")
        network.fit((each for each in [(X, None)] * 4), steps_per_epoch=2, verbose=0)
        network.fit(tf.data.Dataset.from_tensor_slices((X, None)).batch(4), verbose=0)
        small_model().fit((each for each in [(X, Y, None)] * 4), steps_per_epoch=2, verbose=0)


@pytest.mark.parametrize("error", [KeyError, SystemExit])
@on_ranks(2)
def test_a_generator_that_raises(hvd, error):
    """The error reaches all ranks, which can go on. So can they after an error in a callback."""

    def batches(error):
        yield from [(X, Y)] * 4
        raise error("no such file")

    def fail(batch, logs):
        raise ZeroDivisionError

    with parallel(hvd):
        network = small_model()
        with pytest.raises(Exception, match="no such file") as caught:
            network.fit(batches(error), steps_per_epoch=9, verbose=0)
        assert ("The generator of rank 0 raised" in str(caught.value)) == (hvd.rank() > 0)
        callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=fail)]
        with pytest.raises(ZeroDivisionError):
            network.fit(batches(error), steps_per_epoch=2, verbose=0, callbacks=callbacks)
        assert len(network.fit(batches(error), steps_per_epoch=2, verbose=0).history["loss"]) == 1


@on_ranks(2)
def test_generators_that_end_early(hvd):
    """In the middle of an execution of several steps, too."""

    def batches(count):
        yield from [(X, Y)] * count

    with parallel(hvd):
        network = small_model(steps_per_execution=2)
        network.fit(batches(4), verbose=0)
        network.fit(batches(9), steps_per_epoch=2, epochs=2, verbose=0)
        assert network.optimizer.iterations == 8
        with pytest.raises(ValueError):
            network.fit(batches(0), verbose=0)
        hvd.barrier()


def rows(count):
    """Batches that all differ."""
    for number in range(count):
        x = np.sin(np.arange(32, dtype="float32") + 32 * number).reshape(8, 4)
        yield x, x.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("executed", [1, 2])
@on_ranks(1, 2, 3)
def test_validation(hvd, executed):
    """Each begins with the batches at which Keras has looked, and goes on with those behind the last one's."""
    known, epochs, steps = _compat.batches_before_training(), 4, 4
    batches = list(rows(99))
    with parallel(hvd):
        network = small_model(optimizer=keras.optimizers.SGD(0.01), steps_per_execution=executed)
        network.build((None, 4))
        expected = []

        class Look(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                fresh = batches[known + epoch * (steps - known) :][: steps - known]
                errors = [network(x).numpy() - y for x, y in batches[:known] + fresh]
                expected.append(np.mean(np.square(errors)))

        found = network.fit(
            X,
            Y,
            epochs=epochs,
            validation_data=rows(99),
            validation_steps=steps,
            verbose=0,
            callbacks=[Look()],
        ).history["val_loss"]
    if hvd.size() > 1:  # on one rank Keras reads the generator, and loses what tf.data has read ahead
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@on_ranks(2)
def test_validation_generators_that_end_or_raise(hvd):
    """One that ends gives later validations the batches at which Keras has looked. One may be for training, too."""

    def broken():
        yield from rows(3)
        raise KeyError("no such file")

    with parallel(hvd):
        network = small_model()
        found = network.fit(X, Y, epochs=3, validation_data=rows(5), verbose=0).history["val_loss"]
        assert hvd.allgather_object(found) == [found] * 2 and len(found) == 3
        both = rows(20)
        network.fit(both, steps_per_epoch=3, epochs=2, validation_data=both, validation_steps=4, verbose=0)
        with pytest.raises(Exception, match="no such file"):
            network.fit(X, Y, validation_data=broken(), validation_steps=5, verbose=0)
        for empty in (rows(0), rows(1)):
            with contextlib.suppress(ValueError):
                network.fit(X, Y, validation_data=empty, validation_steps=1, verbose=0)
        hvd.barrier()
