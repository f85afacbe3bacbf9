"""What the collectives share: checks of arguments, and names."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfddl.ops import names
from tfddl.ops.support_table import check_dtype
from tfddl.runtime import basics, fork, xla


def check_callable(kind: str) -> None:
    """Refuses a call where no collective can run.

    Raises:
        ValueError: tfddl is not initialized, or the call is traced by XLA where there are no XLA kernels.
    """
    basics.rank()  # raises before init
    fork.check(kind)
    xla.require(kind)


def prepare(value: Any, kind: str, op: int | None = None) -> tf.Tensor:
    """Converts an argument to a tensor that the op takes.

    Raises:
        ValueError: See `check_callable`.
        TypeError: The dtype is not supported.
    """
    check_callable(kind)
    if isinstance(value, tf.IndexedSlices):
        raise TypeError(
            f"{kind} takes dense tensors. Received: tf.IndexedSlices. Convert it with tf.convert_to_tensor(...)."
        )
    tensor = tf.convert_to_tensor(value)
    check_dtype(kind, tensor.dtype, op)
    return tensor


def prepare_rows(value: Any, kind: str, op: int | None = None) -> tf.Tensor:
    """As `prepare`, for an op that splits or joins tensors along their first dimension.

    Raises:
        ValueError: Also when the tensor is a scalar.
    """
    tensor = prepare(value, kind, op)
    if tensor.shape.rank == 0:
        raise ValueError(
            f"{kind} needs a tensor of rank 1 or more. Received: a scalar of {tensor.dtype.name}"
        )
    return tensor


def name_of(kind: str, name: str | None, ignore_name_scope: bool = False, process_set: int = 0) -> str:
    """The name on which ranks agree: the user's, or one that follows from the place in the program."""
    if name is None:
        return names.unique(kind, process_set)
    if not tf.executing_eagerly() and not ignore_name_scope:
        scope = tf.compat.v1.get_default_graph().get_name_scope()
        name = f"{scope}/{name}" if scope else name
    return names.numbered(name, process_set)
