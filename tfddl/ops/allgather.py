"""allgather: the tensors of all ranks, one below the other, on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.ops import names, native
from tfddl.ops.collective import check_list, name_of, prepare_rows
from tfddl.ops.constants import Sum
from tfddl.ops.grouped import in_groups
from tfddl.runtime.process_sets import ProcessSet, by_id, global_process_set, id_of, place_in


@tf.autograph.experimental.do_not_convert
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenates the tensors of all ranks along the first dimension, in the order of the ranks.

    Args:
        tensor: Of one dtype and, beyond the first dimension, one shape on all ranks. The first dimension may differ by
            rank and may be 0.
        name: See `allreduce`.
        ignore_name_scope: See `allreduce`.
        process_set: See `allreduce`.

    Returns:
        A tensor of shape `[sum of the first dimensions, ...]`.

    Raises:
        ValueError: `tensor` is a scalar, or tfddl is not initialized.
        TypeError: The dtype is not supported: see docs/operations.md; of strings use `allgather_object`.
        tf.errors.FailedPreconditionError: On all ranks, when their calls do not fit together.
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
    """Concatenates several tensors, each with its namesakes of all ranks, as one (per dtype): agreed on together.

    Args, returns and raises are those of `allgather`, with lists of tensors. The first dimension may differ by member and by
    rank. An empty list gives an empty list, and None stays None in its place, which must be the same on all ranks.
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
    """My rows are part of every rank's result: their gradient is my part of the sum of the cotangents. (Horovod
    averages here.)"""
    name, number = names.of_gradient(operation)
    dense = [tf.convert_to_tensor(cotangent) for cotangent in cotangents[:-2]]
    totals = native.allreduce(dense, Sum, name, process_set=number)
    rows, place = operation.outputs[-2], place_in(by_id(number))
    if _compat.in_xla_context():
        # XLA has to know the gradient's shape, and all ranks have equally many rows there.
        counts = [tf.shape(x)[0] for x in operation.inputs]
        return [total[place * n : (place + 1) * n] for n, total in zip(counts, totals, strict=True)]
    begins = tf.cumsum(rows, axis=1, exclusive=True)[:, place]
    mine = rows[:, place]
    return [total[begins[i] : begins[i] + mine[i]] for i, total in enumerate(totals)]
