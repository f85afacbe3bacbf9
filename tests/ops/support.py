"""Inputs that every rank can compute for every other, and the two ways to call an op."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl.ops.dtypes import FLOATS

INTEGERS = ("int32", "int64")
DTYPES = FLOATS + INTEGERS
"""The dtypes for tests of shapes, modes and sizes; test_dtypes.py runs every operation with all dtypes."""
MODES = ("eager", "graph")
SHAPES = ((), (1,), (0,), (7,), (3, 0, 2), (2, 3, 4), (1, 1025))


def numpy_type(dtype: str) -> np.dtype:
    """The NumPy type of a TensorFlow dtype's name, bfloat16 included."""
    return np.dtype(tf.dtypes.as_dtype(dtype).as_numpy_dtype)


def array(rank: int, dtype: str, shape: Sequence[int] = (5,), seed: int = 0) -> np.ndarray:
    """The input of `rank`: small whole numbers, whose sums are exact in every dtype."""
    generator = np.random.default_rng([seed, rank])
    return generator.integers(-9, 10, size=tuple(shape)).astype(numpy_type(dtype))


def arrays(size: int, dtype: str, shape: Sequence[int] = (5,), seed: int = 0) -> list[np.ndarray]:
    """The inputs of all ranks."""
    return [array(rank, dtype, shape, seed) for rank in range(size)]


def total(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The sum in rank order: integers wrap in their own type, 16-bit floats are rounded once, at the end."""
    dtype = parts[0].dtype
    wide = np.dtype("float32") if dtype.itemsize == 2 else dtype
    result = parts[0].astype(wide)
    for part in parts[1:]:
        result = result + part.astype(wide)
    return result.astype(dtype)


def mean(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The average: integers are truncated toward zero."""
    dtype = parts[0].dtype
    wide = sum(part.astype("float64") for part in parts) / len(parts)
    return (np.trunc(wide) if dtype.kind == "i" else wide).astype(dtype)


def call(mode: str, function: Callable[..., Any], *inputs: Any) -> Any:
    """Runs `function` on the inputs as tensors, eagerly or as a tf.function (AutoGraph would find nothing to do)."""
    tensors = tf.nest.map_structure(tf.constant, list(inputs))
    return (tf.function(function, autograph=False) if mode == "graph" else function)(*tensors)


@contextlib.contextmanager
def in_threads(*calls: Callable[[], Any]) -> Iterator[None]:
    """Runs each call in a thread of its own beside the body, waits for all, and raises the first error."""
    failures: list[BaseException] = []

    def run(call: Callable[[], Any]) -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def at_once(*calls: Callable[[], Any]) -> None:
    """Runs each call in a thread of its own, waits for all, and raises the first error."""
    with in_threads(*calls):
        pass


def arguments_by_rank(message: str) -> dict[int, str]:
    """The arguments of each rank that an error of different arguments quotes ("ranks 0, 2: ...; rank 1: ...")."""
    quoted = message.split("with different arguments: ")[1].split(". Call it with the same ")[0]
    entries = re.findall(r"ranks? ([\d, ]+): (.*?)(?:; (?=ranks? \d)|$)", quoted, re.DOTALL)
    return {int(rank): text for ranks, text in entries for rank in ranks.split(", ")}


def check(result: tf.Tensor, expected: np.ndarray) -> None:
    """Same dtype, same shape, same numbers."""
    assert result.dtype == tf.dtypes.as_dtype(expected.dtype)
    assert tuple(result.shape) == expected.shape
    np.testing.assert_array_equal(result.numpy().astype("float64"), expected.astype("float64"))


def check_close(result: tf.Tensor, expected: np.ndarray) -> None:
    """Like `check`, with a tolerance of one rounding if sums are not exact."""
    assert result.dtype == tf.dtypes.as_dtype(expected.dtype)
    assert tuple(result.shape) == expected.shape
    digits = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-14}
    tolerance = digits.get(expected.dtype.name, 0.0)
    np.testing.assert_allclose(
        result.numpy().astype("float64"), expected.astype("float64"), rtol=tolerance, atol=tolerance
    )
