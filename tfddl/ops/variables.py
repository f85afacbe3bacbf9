"""broadcast_variables: the same weights on all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfddl.ops.broadcast import broadcast

_called = False


def has_broadcast() -> bool:
    """Whether this process has called `broadcast_variables`."""
    return _called


@tf.autograph.experimental.do_not_convert
def broadcast_variables(variables: Iterable[Any], root_rank: int) -> tf.Operation | None:
    """Assigns every variable the value that it has on `root_rank`.

    Args:
        variables: TensorFlow or Keras variables, in the same order on all ranks.
        root_rank: Whose values all ranks take.

    Returns:
        In a graph of TF1 the operation that does it, to be run in a session; else None.

    Raises:
        TypeError: A variable's dtype is not supported.
        tf.errors.FailedPreconditionError: On all ranks, when the variables' shapes or dtypes differ.
    """
    global _called
    _called = True
    pending = []
    for index, variable in enumerate(variables):
        sent = broadcast(variable, root_rank, name=f"broadcast_variables.{index}")
        pending.append((variable, sent))
    assigned = [variable.assign(value) for variable, value in pending]
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
        return None
    return tf.group(*assigned)
