"""broadcast: all ranks get the tensor of one rank."""

from __future__ import annotations

import operator
from typing import Any

import tensorflow as tf

from tfddl.ops import names, native
from tfddl.ops.collective import name_of, prepare
from tfddl.ops.constants import Sum
from tfddl.runtime import basics, rank_queries
from tfddl.runtime.process_sets import ProcessSet, global_process_set, id_of


@tf.autograph.experimental.do_not_convert
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Gives every rank the tensor of `root_rank`.

    Args:
        tensor: On the root the tensor to send; on other ranks a tensor of the same shape and dtype.
        root_rank: The sender, the same on all ranks: its rank in the job, with any process set.
        name: See `allreduce`.
        ignore_name_scope: See `allreduce`.
        process_set: See `allreduce`.

    Returns:
        The root's tensor.

    Raises:
        ValueError: tfddl is not initialized.
        TypeError: The dtype is not supported: see docs/operations.md. For strings use `broadcast_object`. Or
            `root_rank` is not an int.
        tf.errors.InvalidArgumentError: `root_rank` is no member of `process_set`.
        tf.errors.FailedPreconditionError: On all ranks, when their calls do not fit together.

    Example:
        On 2 ranks:

        >>> x = tf.constant([hvd.rank()])  # [0] and [1]
        >>> hvd.broadcast(x, root_rank=1).numpy()
        array([1], dtype=int32)
    """
    x = prepare(tensor, "broadcast")
    number = id_of(process_set, "broadcast")
    name = name_of("broadcast", name, ignore_name_scope, number)
    return native.broadcast(x, root_index(root_rank), name, number)


def root_index(root_rank: Any) -> int:
    """The argument `root_rank` as an int.

    Raises:
        TypeError: It is none.
    """
    try:
        return operator.index(root_rank)
    except TypeError:
        raise TypeError(
            f"root_rank is the number of a rank: pass an int, such as 0. Received: root_rank={root_rank!r}"
        ) from None


@tf.RegisterGradient("TfddlBroadcast")
def _gradient(operation: Any, cotangent: tf.Tensor) -> tf.Tensor:
    """The gradient of the root's input is the sum of the cotangents; the gradient of other ranks' inputs is zero."""
    name, number = names.of_gradient(operation)
    (total,) = native.allreduce([tf.convert_to_tensor(cotangent)], Sum, name, process_set=number)
    rank_queries.note_trace("the gradient of a collective")
    if basics.rank() == operation.get_attr("root_rank"):
        return total
    # The zeros depend on the sum. TensorFlow makes a constant of tf.zeros_like(total), and a session that needs a constant
    # only does not run the sum, for which the other ranks wait. The gradient of this gradient needs the dependency too.
    return tf.where(False, total, tf.zeros([], total.dtype))
