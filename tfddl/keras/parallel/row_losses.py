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

from tfddl import _graphs
from tfddl.keras.parallel import part as parts
from tfddl.runtime.log import warn_once

_ROWS, _LARGEST = 8, 2**18  # numbers in 8 rows; a loss may be a whole network
_tried: dict[int, weakref.ref[Any]] = {}  # by id: a dataclass has no hash


def with_rows_tried(call: Callable[..., Any]) -> Callable[..., Any]:
    """`keras.losses.Loss.__call__`, which tries a loss of the program's own on random rows in the first step."""

    @functools.wraps(call)
    def compute(loss: Any, y_true: Any, y_pred: Any, *arguments: Any, **options: Any) -> Any:
        tried = parts.current() is not None and _is_new(loss) and not _is_of_keras(loss)
        if tried and _compares_rows(loss, y_true, y_pred):
            warn_once(
                f"DataParallel: the loss {loss.name!r} compares the rows of a batch with each other, and each process "
                "has a part of the rows. So a row is compared with fewer rows than in one process, and the results "
                "differ. If that matters: start one process, without --auto, or take the six lines of tfddl with "
                "hvd.allgather in the loss (docs/guides/recipes.md)."
            )
        return call(loss, y_true, y_pred, *arguments, **options)

    return compute


def _is_new(loss: Any) -> bool:
    """Whether this is the first call for the loss."""
    key = id(loss)
    if key in _tried:
        return False
    _tried[key] = weakref.ref(loss, lambda _: _tried.pop(key, None))
    return True


def _is_of_keras(loss: Any) -> bool:
    """Whether Keras has the loss. Its losses that compare rows are refused."""
    kinds = [type(loss), *([loss.fn] if hasattr(loss, "fn") else [])]
    return all(str(getattr(kind, "__module__", "")).startswith("keras.") for kind in kinds)


def _compares_rows(loss: Any, y_true: Any, y_pred: Any) -> bool:
    """Whether the numbers of the first rows change if the other rows are left out. False if that cannot be found out."""
    if not all(tf.is_tensor(each) and each.shape.rank for each in (y_true, y_pred)):
        return False
    sizes = [[3 if size is None else size for size in each.shape[1:]] for each in (y_true, y_pred)]
    if _ROWS * sum(map(math.prod, sizes)) > _LARGEST:
        return False
    draw = np.random.default_rng(0)
    rows = draw.integers(0, 2, [_ROWS, *sizes[0]]), draw.uniform(0.1, 0.9, [_ROWS, *sizes[1]])
    try:
        with tf.init_scope():  # not in the graph of the step
            traced = _traced(loss, [tf.TensorSpec([None, *size], loss.dtype) for size in sizes])
            if _has_state(traced.graph):
                return False
            given = [tf.constant(each, loss.dtype) for each in rows]
            whole = np.asarray(traced(*given))[: _ROWS // 2]
            alone = np.asarray(traced(*(each[: _ROWS // 2] for each in given)))
    except Exception:  # the function needs other numbers than these, or tensors of the step
        return False
    if whole.ndim == 0 or len(alone) != _ROWS // 2:
        return False
    return not np.allclose(whole, alone, rtol=1e-3, atol=1e-5, equal_nan=True)


def _traced(loss: Any, specs: list[tf.TensorSpec]) -> Any:
    """The loss as a graph of its own, with rows in any number. Like Keras' step, without AutoGraph."""

    def call(*given: Any) -> Any:
        return contextvars.Context().run(loss.call, *given)  # a loss inside of it is not to be of a part

    return tf.function(call, autograph=False).get_concrete_function(*specs)


def _has_state(graph: Any) -> bool:
    """Whether running a graph has effects, such as a new moving average, or draws random numbers."""
    if any(captured.dtype in (tf.resource, tf.variant) for captured, _ in graph.captures):
        return True
    definition = graph.as_graph_def()
    functions = {each.signature.name: each for each in definition.library.function}
    nodes = [*definition.node, *(node for each in functions.values() for node in each.node_def)]
    kinds = {node.op for node in nodes} - set(functions)
    return any(map(_graphs.is_stateful_op, kinds))
