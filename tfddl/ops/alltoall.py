"""alltoall: each rank sends rows to each other."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.ops import names, native
from tfddl.ops.blocks import put_back
from tfddl.ops.collective import name_of, prepare_rows
from tfddl.runtime.process_sets import ProcessSet, by_id, global_process_set, id_of, members


@tf.autograph.experimental.do_not_convert
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Sends rows to every rank and concatenates those that come, in the order of the ranks.

    Args:
        tensor: Of one dtype and, beyond the first dimension, one shape on all ranks. Its first rows go to rank 0, the
            next ones to rank 1, and so on.
        splits: How many rows go to each rank: a vector of int32 or int64, the same on all ranks, with one number for
            each rank, 0 or more. They may differ by rank, and rows beyond their sum go to nobody. Without it all ranks
            get equally many.
        name: See `allreduce`.
        ignore_name_scope: See `allreduce`.
        process_set: See `allreduce`. Rows go to its members in their order.

    Returns:
        The received rows, `[sum of what all ranks send here, ...]`; with `splits` a tuple of them and a vector of the
        dtype of `splits` that says how many came from each rank.

    Raises:
        ValueError: `tensor` is a scalar, or tfddl is not initialized.
        TypeError: The dtype of `tensor` or `splits` is not supported.
        tf.errors.InvalidArgumentError: On this rank, when the rows cannot be split in this way.
        tf.errors.FailedPreconditionError: On all ranks, when their calls do not fit together.
    """
    number = id_of(process_set, "alltoall")
    x = prepare_rows(tensor, "alltoall")
    if splits is None:
        return native.alltoall(x, None, name_of("alltoall", name, ignore_name_scope, number), number)[0]
    sizes = tf.convert_to_tensor(splits)
    if sizes.dtype not in (tf.int32, tf.int64):
        raise TypeError(f"splits of alltoall must be int32 or int64. Received: {sizes.dtype.name}")
    if sizes.shape.rank not in (1, None):
        raise ValueError(f"splits of alltoall must be a vector. Received: shape {sizes.shape}")
    return native.alltoall(x, sizes, name_of("alltoall", name, ignore_name_scope, number), number)


@tf.RegisterGradient("TfddlAlltoall")
def _gradient(operation: Any, cotangent: tf.Tensor, _: Any) -> tuple[tf.Tensor, None]:
    """The cotangents go back the way that the rows came; rows that went to nobody, or to a rank that has
    joined, get none."""
    name, number = names.of_gradient(operation)
    x = operation.inputs[0]
    returned, came = native.alltoall(tf.convert_to_tensor(cotangent), operation.outputs[1], name, number)
    if _compat.in_xla_context():  # where all ranks send equally many rows to each
        return returned, None
    if operation.get_attr("even"):
        size = len(members(by_id(number)))
        sent = tf.fill([size], tf.shape(x, tf.int64)[0] // size)
    else:
        sent = operation.inputs[1]
    return put_back(returned, came, sent, x), None
