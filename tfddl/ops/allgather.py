"""allgather: the tensors of all ranks, one below the other, on all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfddl.ops.allreduce import allreduce
from tfddl.ops.collective import name_of, prepare, unchain
from tfddl.ops.constants import Sum
from tfddl.runtime import basics, library


@tf.autograph.experimental.do_not_convert
def allgather(tensor: Any, name: str | None = None, ignore_name_scope: bool = False) -> tf.Tensor:
    """Concatenates the tensors of all ranks along the first dimension, in the order of the ranks.

    Args:
        tensor: Of one dtype and, beyond the first dimension, one shape on all ranks. The first dimension may differ by
            rank and may be 0.
        name: See `allreduce`.
        ignore_name_scope: See `allreduce`.

    Returns:
        A tensor of shape `[sum of the first dimensions, ...]`.

    Raises:
        ValueError: `tensor` is a scalar, or tfddl is not initialized.
        tf.errors.FailedPreconditionError: On all ranks, when their calls do not fit together.
    """
    result, _ = library.ops().tfddl_allgather(
        x=prepare(tensor, "allgather"), tensor_name=name_of("allgather", name, ignore_name_scope)
    )
    unchain(result)
    return result


@tf.RegisterGradient("TfddlAllgather")
def _gradient(operation: Any, cotangent: tf.Tensor, _: Any) -> tf.Tensor:
    """My rows are part of every rank's result: their gradient is my part of the sum of the cotangents. (Horovod
    averages here.)"""
    name = operation.get_attr("tensor_name").decode() + ".gradient"
    total = allreduce(cotangent, op=Sum, name=name, ignore_name_scope=True)
    rows = operation.outputs[1]
    begin = tf.reduce_sum(rows[: basics.rank()])
    return total[begin : begin + rows[basics.rank()]]
