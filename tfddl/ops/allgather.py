"""allgather: all ranks get the tensors of all ranks, concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl import _graphs
from tfddl.ops import names, native
from tfddl.ops.collective import check_list, name_of, prepare_rows
from tfddl.ops.constants import Sum
from tfddl.ops.grouped import in_groups
from tfddl.runtime.process_sets import ProcessSet, by_id, global_process_set, id_of, rank_in


@tf.autograph.experimental.do_not_convert
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenates the tensors of all ranks along the first dimension, in the order of the ranks.

    Args:
        tensor: The tensor to send, with one dimension or more. All ranks have the same dtype, and the same shape except
            for the first dimension, which may be 0.
        name: See `allreduce`.
        ignore_name_scope: See `allreduce`.
        process_set: See `allreduce`.

    Returns:
        A tensor of shape `[sum of the first dimensions, ...]`.

    Raises:
        ValueError: `tensor` is a scalar, or tfddl is not initialized.
        TypeError: The dtype is not supported: see docs/operations.md. For strings use `allgather_object`.
        tf.errors.FailedPreconditionError: On all ranks, when their calls do not fit together.

    Example:
        On 2 ranks:

        >>> x = tf.fill([1 + hvd.rank()], hvd.rank())  # [0] and [1, 1]
        >>> hvd.allgather(x).numpy()
        array([0, 1, 1], dtype=int32)
    """
    x = prepare_rows(tensor, "allgather")
    number = id_of(process_set, "allgather")
    return native.allgather(x, name_of("allgather", name, ignore_name_scope, number), number)


@tf.autograph.experimental.do_not_convert
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Concatenates each of several tensors with the tensors of the same index of all ranks.

    Ranks agree on all tensors together, and all tensors of one dtype travel as one.

    Args, returns and raises are like those of `allgather`, with lists of tensors. The first dimension may differ by tensor
    and by rank. An empty list gives an empty list. None stays None; all ranks must have None at the same indices.
    """
    check_list("grouped_allgather", tensors)
    number = id_of(process_set, "grouped_allgather")
    if all(tensor is None for tensor in tensors):
        return list(tensors)
    group = name_of("grouped_allgather", name, ignore_name_scope, number)
    return in_groups(
        tensors,
        lambda tensor: prepare_rows(tensor, "grouped_allgather"),
        lambda members, suffix, context: native.grouped_allgather(members, group + suffix, context, number),
    )


@tf.RegisterGradient("TfddlAllgather")
def _gradient(operation: Any, *cotangents: Any) -> list[tf.Tensor]:
    """The gradient of a rank's rows is the sum of all ranks' cotangents of these rows. (Horovod averages here.)"""
    name, number = names.of_gradient(operation)
    # A cotangent that a program gives may have another dtype.
    dense = [
        tf.cast(tf.convert_to_tensor(each), x.dtype)
        for each, x in zip(cotangents, operation.inputs, strict=False)
    ]
    totals = native.allreduce(dense, Sum, name, process_set=number)
    rows, rank = operation.outputs[-2], rank_in(by_id(number))
    if _graphs.in_xla_context():
        # XLA has to know the shape of the gradient. All ranks have equally many rows there.
        counts = [tf.shape(x)[0] for x in operation.inputs]
        return [total[rank * n : (rank + 1) * n] for n, total in zip(counts, totals, strict=True)]
    begins = tf.cumsum(rows, axis=1, exclusive=True)[:, rank]
    counts = rows[:, rank]
    return [total[begins[i] : begins[i] + counts[i]] for i, total in enumerate(totals)]
