"""The training of `program.py`, with a place for each moment of `cells.py`."""

import atexit
import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfddl as hvd
from tests.faults.matrix import injector
from tests.faults.matrix.injector import at
from tfddl.runtime import library

STEPS, BATCH = 60, 4
LAST_STEP = {"first step": 0, "step 50 of fit": 50, "with jit_compile": 5, "in a custom loop": 5}


def batches(moments: tuple[str, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The data of this rank, which may end at one of these moments."""
    generator = np.random.default_rng(hvd.rank())
    for step in range(STEPS):
        x = generator.normal(size=(BATCH, 3)).astype("float32")
        yield x, np.tile(x.sum(axis=1, keepdims=True), 4)
        if any(step == LAST_STEP[moment] and injector.data_ends(moment) for moment in moments):
            return


class Dense(keras.layers.Dense):
    """A layer whose weights are being saved at one of the moments."""

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        at("in a checkpoint")


class Faults(keras.callbacks.Callback):
    """The moments of `fit`."""

    def __init__(self, steps: dict[int, str]):
        super().__init__()
        self._steps = steps
        self._seen = -1

    def on_train_batch_begin(self, batch, logs=None):
        self._seen += 1
        if self._seen in self._steps:
            at(self._steps[self._seen], lambda: poison(self.model))

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.model.save_weights(injector.directory() / f"rank{hvd.rank()}.weights.h5")

    def on_train_end(self, logs=None):
        at("in on_train_end")


def poison(model: keras.Model) -> None:
    """Makes this rank compute NaN."""
    model.layers[-1].bias.assign([np.nan] * 4)


def loss(y: Any, prediction: Any) -> Any:
    at("in tracing")
    return tf.reduce_mean(tf.square(y - prediction))


def make_model() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((3,)), Dense(4)])


def train(jit: bool) -> None:
    """Training by `fit`."""
    steps = {5: "with jit_compile"} if jit else {0: "first step", 50: "step 50 of fit"}
    model = make_model()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss, jit_compile=jit)
    signature = (tf.TensorSpec((BATCH, 3), tf.float32), tf.TensorSpec((BATCH, 4), tf.float32))
    data = tf.data.Dataset.from_generator(lambda: batches(tuple(steps.values())), output_signature=signature)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        keras.callbacks.TerminateOnNaN(),
        Faults(steps),
    ]
    model.fit(data, epochs=2, verbose=0, callbacks=callbacks)


def train_in_a_loop() -> None:
    """Training by a loop of our own."""
    model, optimizer = make_model(), keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)

    @tf.function
    def step(x: Any, y: Any) -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            value = tf.reduce_mean(tf.square(y - model(x)))
        optimizer.apply_gradients(
            zip(tape.gradient(value, model.trainable_variables), model.trainable_variables, strict=True)
        )

    for number, (x, y) in enumerate(batches(("in a custom loop",))):
        if number == LAST_STEP["in a custom loop"]:
            at("in a custom loop", lambda: poison(model))
        step(x, y)
    if os.environ[injector.PREFIX + "FAULT"] == "joins early":
        hvd.join()


def main() -> None:
    """Trains, up to the planned fault or to the end."""
    atexit.register(at, "in an early exit handler")
    at("before init")
    injector.meet(int(os.environ["OMPI_COMM_WORLD_SIZE"]))
    real = library.initialize_mpi
    library.initialize_mpi = lambda: (real(), at("in init"))
    hvd.init()
    atexit.register(at, "in a late exit handler")
    moment = os.environ[injector.PREFIX + "MOMENT"]
    if moment == "in a custom loop":
        train_in_a_loop()
    else:
        train(jit=moment == "with jit_compile")
    hvd.allreduce(tf.ones([1]), name="last")
    print(f"rank {hvd.rank()}: done", flush=True)
