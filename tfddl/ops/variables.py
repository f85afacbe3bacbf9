"""broadcast_variables: the same weights on all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfddl.ops.broadcast import broadcast


@tf.autograph.experimental.do_not_convert
def broadcast_variables(variables: Iterable[Any], root_rank: int) -> None:
    """Assigns every variable the value that it has on `root_rank`.

    Args:
        variables: TensorFlow or Keras variables, in the same order on all ranks.
        root_rank: Whose values all ranks take.

    Raises:
        tf.errors.FailedPreconditionError: On all ranks, when the variables' shapes or dtypes differ.
    """
    pending = []
    for index, variable in enumerate(variables):
        value = tf.convert_to_tensor(variable)
        wire = _wire_type(value.dtype)
        # bool and small integers travel as int32, which holds all their values.
        sent = broadcast(tf.cast(value, wire), root_rank, name=f"broadcast_variables.{index}")
        pending.append((variable, tf.cast(sent, value.dtype)))
    for variable, value in pending:
        variable.assign(value)


def _wire_type(dtype: tf.DType) -> tf.DType:
    if dtype in (tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16):
        return tf.int32
    return tf.int64 if dtype in (tf.uint32, tf.uint64) else dtype
