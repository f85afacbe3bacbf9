"""alltoall: each rank sends rows to every rank."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfddl import _graphs
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
    """Sends rows to every rank and concatenates the received rows in the order of the ranks.

    Args:
        tensor: The rows to send, with one dimension or more. All ranks have the same dtype, and the same shape except for
            the first dimension. The first rows go to rank 0, the next rows to rank 1, and so on.
        splits: A vector of int32 or int64, of the same dtype on all ranks, with the number of rows for each rank, 0 or more.
            The numbers may differ by rank. Rows beyond their sum go to no rank. Without `splits` all ranks get equally
            many rows.
        name: See `allreduce`.
        ignore_name_scope: See `allreduce`.
        process_set: See `allreduce`. The members get the rows in the order of their ranks.

    Returns:
        The received rows, `[rows from all ranks, ...]`. With `splits` a tuple of the rows and a vector of the dtype of
        `splits`, the number of rows from each rank.

    Raises:
        ValueError: `tensor` is a scalar, or tfddl is not initialized.
        TypeError: The dtype of `tensor` or `splits` is not supported.
        tf.errors.InvalidArgumentError: On this rank, when the rows cannot be split by `splits`, or not evenly without it.
        tf.errors.FailedPreconditionError: On all ranks, when their calls do not fit together.

    Example:
        On 2 ranks:

        >>> x = tf.constant([10, 20]) + hvd.rank()  # [10, 20] and [11, 21]
        >>> hvd.allgather_object(hvd.alltoall(x).numpy().tolist())
        [[10, 11], [20, 21]]
    """
    number = id_of(process_set, "alltoall")
    x = prepare_rows(tensor, "alltoall")
    if splits is None:
        return native.alltoall(x, None, name_of("alltoall", name, ignore_name_scope, number), number)[0]
    # TensorFlow makes floats of an empty list.
    sizes = tf.convert_to_tensor(
        splits, tf.int32 if isinstance(splits, (list, tuple)) and not splits else None
    )
    if sizes.dtype not in (tf.int32, tf.int64):
        raise TypeError(
            f"splits of alltoall must be int32 or int64: cast them with tf.cast. Received: {sizes.dtype.name}"
        )
    if sizes.shape.rank not in (1, None):
        raise ValueError(
            f"splits of alltoall must be a vector: pass one number for each rank. Received: shape {sizes.shape}"
        )
    return native.alltoall(x, sizes, name_of("alltoall", name, ignore_name_scope, number), number)


@tf.RegisterGradient("TfddlAlltoall")
def _gradient(operation: Any, cotangent: tf.Tensor, _: Any) -> tuple[tf.Tensor, None]:
    """Sends the cotangent of each row back to the sender. Rows that no rank has received get zeros."""
    name, number = names.of_gradient(operation)
    rows, received = tf.convert_to_tensor(cotangent), operation.outputs[1]
    size, even = len(members(by_id(number))), operation.get_attr("even")
    if _graphs.in_xla_context():
        # All ranks send equally many rows. XLA may compile the gradient alone, and needs a constant also then.
        received = tf.fill([size], tf.shape(rows, received.dtype)[0] // size)
        return native.alltoall(rows, received, name, number)[0], None
    returned, came = native.alltoall(rows, received, name, number)
    x = operation.inputs[0]
    sent = tf.fill([size], tf.shape(x, tf.int64)[0] // size) if even else operation.inputs[1]
    return put_back(returned, came, sent, x), None
