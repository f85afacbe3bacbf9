"""What the collectives share: checks of arguments, names, and the freedom to run at the same time."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.ops import names
from tfddl.runtime import basics

DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


def prepare(value: Any, kind: str) -> tf.Tensor:
    """Converts an argument to a tensor that the op takes.

    Raises:
        ValueError: tfddl is not initialized, or the call is traced by XLA.
        TypeError: The dtype is not supported.
    """
    basics.rank()  # raises before init
    if _compat.in_xla_context():
        raise ValueError(
            f"tfddl's {kind} cannot run inside a function compiled by XLA yet: use jit_compile=False for the "
            "function or `model.compile(..., jit_compile=False)`. Received: jit_compile=True"
        )
    if isinstance(value, tf.IndexedSlices):
        raise TypeError(
            f"{kind} takes dense tensors. Received: tf.IndexedSlices. Convert it with tf.convert_to_tensor(...)."
        )
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype not in DTYPES:
        supported = ", ".join(dtype.name for dtype in DTYPES)
        raise TypeError(f"{kind} supports {supported}. Received: {tensor.dtype.name}")
    return tensor


def name_of(kind: str, name: str | None, ignore_name_scope: bool = False) -> str:
    """The name on which ranks agree: the user's, or one that follows from the place in the program."""
    if name is None:
        return names.unique(kind)
    if not tf.executing_eagerly() and not ignore_name_scope:
        scope = tf.compat.v1.get_default_graph().get_name_scope()
        name = f"{scope}/{name}" if scope else name
    return names.numbered(name)


def unchain(result: tf.Tensor) -> None:
    """Lets the op that made `result` run as soon as its inputs exist.

    TensorFlow runs the stateful ops of a function one after the other. Ours are agreed on by name and need no order, and
    a bucket of gradients must not wait for the one before it to come back.
    """
    if not tf.executing_eagerly():
        manager = getattr(result.graph, "experimental_acd_manager", None)
        if manager is not None:
            manager.run_independently(result.op)
