"""A small model, data cut into shards, and what one process makes of the whole."""

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.keras.distributed.dynamic_subclass import is_subclassed

keras: Any = _compat.keras()
FEATURES, CLASSES, STEPS, BATCH = 6, 3, 5, 4


def model(dtype: Any = "float32", seed: int = 7) -> keras.Model:
    """Dense layers with equal weights on all ranks."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((FEATURES,), dtype="float32" if not isinstance(dtype, str) else dtype),
            keras.layers.Dense(8, activation="tanh", dtype=dtype),
            keras.layers.Dense(CLASSES, dtype=dtype),
        ]
    )


def data(size: int, dtype: str = "float32", steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of the whole job, from which ranks see very different things."""
    generator = np.random.default_rng(3)
    count = size * BATCH * steps
    x = generator.normal(size=(count, FEATURES)) * (1 + np.arange(count)[:, None] % size)
    y = generator.normal(size=(count, CLASSES)) + np.arange(count)[:, None] % size
    return x.astype(dtype), y.astype(dtype)


def shard(arrays: Sequence[np.ndarray], rank: int, size: int) -> list[np.ndarray]:
    """Every size-th row: batch i of all ranks together is batch i of the whole."""
    return [array[rank::size] for array in arrays]


def fit(
    network: keras.Model, optimizer: Any, arrays: Sequence[np.ndarray], batch: int, **options: Any
) -> Any:
    """Trains with `fit`, rows in their order."""
    # Keras would trace the step twice, once to make variables.
    if not is_subclassed(_compat.innermost(optimizer)):
        _compat.build_optimizer(optimizer, network.trainable_variables)
    # A loss computes in float32 unless told otherwise.
    loss = keras.losses.MeanSquaredError(dtype=network.layers[-1].compute_dtype)
    how = {key: options.pop(key, False) for key in ("run_eagerly", "jit_compile")}
    network.compile(optimizer=optimizer, loss=loss, **how)
    return network.fit(*arrays, batch_size=batch, shuffle=False, verbose=0, **options)


def loop(
    network: keras.Model,
    optimizer: Any,
    arrays: Sequence[np.ndarray],
    batch: int,
    tape: Callable[..., Any] = lambda tape: tape,
    eager: bool = False,
    jit: bool = False,
    change: Callable[[list[Any]], list[Any]] = lambda gradients: gradients,
) -> None:
    """Trains with a GradientTape."""

    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tape(tf.GradientTape()) as recording:
            loss = optimizer.scale_loss(
                tf.reduce_mean(tf.square(tf.cast(network(x, training=True), y.dtype) - y))
            )
        gradients = change(recording.gradient(loss, network.trainable_variables))
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))

    run = step if eager else tf.function(step, jit_compile=jit or None)
    x, y = arrays
    for start in range(0, len(x), batch):
        run(tf.constant(x[start : start + batch]), tf.constant(y[start : start + batch]))


def weights(network: keras.Model) -> np.ndarray:
    """All weights in one row."""
    return np.concatenate([np.asarray(value, "float64").ravel() for value in network.get_weights()])


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Gives a list that gets what tfddl logs meanwhile; what it says once only, it says again."""
    from tfddl.runtime import log

    log.warn_once.cache_clear()
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("tfddl")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


def check_equal_on_all_ranks(hvd: Any, variables: Sequence[Any]) -> None:
    """Compares a hash of the variables' bits, accumulators aside: those hold each rank's own gradients."""
    digest = hashlib.sha256()
    for variable in variables:
        if "gradient_accumulator" in variable.name:
            continue
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    word = int.from_bytes(digest.digest()[:8], "little", signed=True)
    words = hvd.allgather(tf.constant([word], tf.int64), name="check.hash").numpy()
    assert len(words) == hvd.size() and len(set(words.tolist())) == 1
