"""Warns of losses with one number for each row that depends on other rows, as contrastive and triplet losses have.

A rank sees its part of a batch, so that it compares fewer rows with each other than one process.
"""

import contextvars
import functools
import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl.keras.parallel import part as parts
from tfddl.runtime.log import warn_once

_ROWS, _LARGEST = 8, 2**18  # numbers in 8 rows; a loss may be a whole network
_tried: Any = weakref.WeakSet()


def with_rows_tried(call: Callable[..., Any]) -> Callable[..., Any]:
    """`keras.losses.Loss.__call__`, which tries a loss of the program's own on random rows in the first step."""

    @functools.wraps(call)
    def compute(loss: Any, y_true: Any, y_pred: Any, *arguments: Any, **options: Any) -> Any:
        if parts.current() is not None and loss not in _tried:
            _tried.add(loss)
            if not _is_of_keras(loss) and _compares_rows(loss, y_true, y_pred):
                warn_once(
                    f"DataParallel: the loss {loss.name!r} compares the rows of a batch with each other, and each process "
                    "has a part of the rows. So a row is compared with fewer rows than in one process, and the results "
                    "differ: start one process, without --auto, if that matters."
                )
        return call(loss, y_true, y_pred, *arguments, **options)

    return compute


def _is_of_keras(loss: Any) -> bool:
    """Whether Keras has the loss. Its losses that compare rows are refused."""
    kinds = [type(loss), *([loss.fn] if hasattr(loss, "fn") else [])]
    return all(str(getattr(kind, "__module__", "")).startswith("keras.") for kind in kinds)


def _compares_rows(loss: Any, y_true: Any, y_pred: Any) -> bool:
    """Whether the numbers of the first rows change if the other rows are left out. False if that cannot be found out."""
    if not all(tf.is_tensor(each) and each.shape.rank for each in (y_true, y_pred)):
        return False
    shapes = [[_ROWS, *(3 if size is None else size for size in each.shape[1:])] for each in (y_true, y_pred)]
    if sum(map(math.prod, shapes)) > _LARGEST:
        return False
    draw = np.random.default_rng(0)
    rows = draw.integers(0, 2, shapes[0]), draw.uniform(0.1, 0.9, shapes[1])

    def numbers(count: int) -> np.ndarray:
        given = [tf.constant(each[:count], loss.dtype) for each in rows]
        values = contextvars.Context().run(loss.call, *given)  # a loss inside of it is not to be of a part
        return np.asarray(values)[: _ROWS // 2]

    try:
        with tf.init_scope():  # at once, not in the graph of the step
            whole, again, alone = numbers(_ROWS), numbers(_ROWS), numbers(_ROWS // 2)
    except Exception:  # the function needs other numbers than these, or tensors of the step
        return False
    if whole.ndim == 0 or len(alone) != _ROWS // 2 or not np.array_equal(whole, again, equal_nan=True):
        return False
    return not np.allclose(whole, alone, rtol=1e-3, atol=1e-5, equal_nan=True)
