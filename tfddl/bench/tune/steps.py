"""Training steps of one model with each of several settings, in one job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfddl as hvd
from tfddl import _compat
from tfddl.bench import levels, models
from tfddl.bench.adapters import Way
from tfddl.bench.gradient_sets import MODELS
from tfddl.bench.rounds import WARM_UP_CALLS, Timing, block_of_all_ranks, measure
from tfddl.gradients.buckets import BUCKET_VARIABLE, DEFAULT_MEGABYTES, Shape

_CALLS = 3


class Steps:
    """A model that trains on random inputs.

    Args:
        name: A name of `gradient_sets.MODELS`, or the path of a `.keras` file.
        batch: Rows of each rank in a step.

    Raises:
        ValueError: The file cannot be read, its model is not one of the functional API, its inputs have no fixed shape, or
            it has no trainable weights of float32.
    """

    def __init__(self, name: str, batch: int) -> None:
        self.model = models.build(name) if name in MODELS else _load(name)
        _check(self.model, name)
        tf.get_logger().setLevel("ERROR")  # no warning of the many functions that it makes of one
        self._inputs = random_inputs(self.model, batch, seed=hvd.rank())
        self._optimizer = _compat.keras().optimizers.SGD(1e-4)
        hvd.broadcast_variables(self.model.variables, root_rank=0)
        self._optimizer.build(self.model.trainable_variables)

    def gradients(self) -> list[tuple[str, Shape]]:
        """Dtype name and shape of each gradient."""
        return [(tf.as_dtype(each.dtype).name, list(each.shape)) for each in self.model.trainable_variables]

    def seconds_of_a_block(self) -> float:
        """About how long a block of calls with the default takes, with its warm-up. All ranks call it."""
        way = self._way(DEFAULT_MEGABYTES, hvd.Compression.none)
        seconds, _ = block_of_all_ranks(way, 1)
        return seconds * (_CALLS + WARM_UP_CALLS)

    def measure(
        self, settings: Mapping[str, tuple[str, Any]], rounds: int, after_round: Callable[[int], None]
    ) -> dict[str, Timing]:
        """Times a step with each setting. All ranks call it.

        Args:
            settings: Bucket sizes and compression, by name.
            rounds: Blocks of each.
            after_round: Gets the number of each round that has ended.
        """
        ways = {name: self._way(*setting) for name, setting in settings.items()}
        return measure(ways, rounds=rounds, calls=_CALLS, after_round=after_round)

    def measure_levels(
        self, megabytes: str, rounds: int, after_round: Callable[[int], None]
    ) -> dict[str, Timing]:
        """Times a step with each of `levels.LEVELS`. All ranks call it.

        Args:
            megabytes: Bucket sizes.
            rounds: Blocks of each.
            after_round: Gets the number of each round that has ended.
        """
        way = self._way(megabytes, hvd.Compression.none)
        return levels.measure_levels(way, rounds=rounds, calls=_CALLS, after_round=after_round)

    def _way(self, megabytes: str, compression: Any) -> Way:
        @tf.function
        def step() -> Any:
            with hvd.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
                outputs = tf.nest.flatten(self.model(self._inputs, training=True))
                values = [tf.cast(each, tf.float32) for each in outputs]
                # Its gradient is bounded, so that random inputs do not end in infinity.
                loss = tf.add_n([tf.reduce_mean(tf.sqrt(1 + tf.square(each))) for each in values])
            variables = self.model.trainable_variables
            self._optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        with _buckets(megabytes):  # read when the step is traced
            step()
        return Way(lambda: float(step()), lambda: models.different_weights(self.model))


def random_inputs(model: Any, batch: int, seed: int) -> Any:
    """Inputs in the structure with which the model was made, such as a dict. Numbers are 0 unless floats, texts are "a".

    Args:
        model: A model of the functional API or Sequential.
        batch: Rows.
        seed: Of the floats.

    Raises:
        ValueError: An input has no fixed shape.
    """
    draws = np.random.default_rng(seed)
    # A Sequential of Keras 3 has no `input`.
    structure = model.inputs[0] if isinstance(model, _compat.keras().Sequential) else model.input
    return tf.nest.map_structure(lambda each: _random(draws, each, batch), structure)


@contextmanager
def _buckets(megabytes: str) -> Iterator[None]:
    before = os.environ.get(BUCKET_VARIABLE)
    os.environ[BUCKET_VARIABLE] = megabytes
    try:
        yield
    finally:
        os.environ.pop(BUCKET_VARIABLE)
        if before is not None:
            os.environ[BUCKET_VARIABLE] = before


def _load(path: str) -> Any:
    if not Path(path).is_file():
        raise ValueError(
            f"--model is one of {', '.join(MODELS)}, or a file that model.save has written: pass one. Received: {path!r}"
        )
    keras = _compat.keras()
    try:
        return keras.models.load_model(path, compile=False)
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(
            f"Keras cannot load {path}: use a model of Keras' own layers. Received: {error}"
        ) from None


def _check(model: Any, name: str) -> None:
    dtypes = {tf.as_dtype(each.dtype) for each in model.trainable_variables}
    if not getattr(model, "inputs", None) or dtypes != {tf.float32}:
        raise ValueError(
            "tfddl tune trains models of the functional API or Sequential, with trainable weights of float32: use one. "
            f"Received: {name}, {model!r} with weights of {sorted(each.name for each in dtypes)}"
        )


def _random(draws: np.random.Generator, tensor: Any, batch: int) -> tf.Tensor:
    shape = tuple(tensor.shape)[1:]
    if None in shape:
        raise ValueError(
            "tfddl tune makes inputs of the model's shape: use a model whose inputs have a fixed shape but for the batch. "
            f"Received: {tensor.name} of shape {tuple(tensor.shape)}"
        )
    dtype = tf.as_dtype(tensor.dtype)
    if dtype == tf.string:
        return tf.fill((batch, *shape), "a")
    values = draws.normal(size=(batch, *shape)) if dtype.is_floating else np.zeros((batch, *shape))
    return tf.cast(values, dtype)
