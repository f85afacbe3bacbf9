"""allreduce: all ranks get the sum, average, minimum, maximum, product or adaptive sum over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl.ops import allreduce_gradient, native  # noqa: F401 the first registers the gradient
from tfddl.ops.collective import check_callable, prepare, without_devices
from tfddl.ops.compression import Compression
from tfddl.ops.constants import Average, Sum
from tfddl.ops.dtypes import REDUCTIONS
from tfddl.ops.reduction_call import ReductionCall
from tfddl.ops.sparse import SlicesReduction, allreduce_slices
from tfddl.runtime.log import warn_deprecated
from tfddl.runtime.process_sets import ProcessSet, global_process_set


@tf.autograph.experimental.do_not_convert
@without_devices
def allreduce(
    tensor: Any,
    average: bool | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks.

    Args:
        tensor: The tensor to reduce, of the same shape and dtype on all ranks. A table in docs/operations.md has the
            dtypes of each `op`. Or a `tf.IndexedSlices`, with `Average` and `Sum` only; the number of rows may differ.
        average: Deprecated; use `op`.
        compression: The format in which the tensor travels: `Compression.none`, `.fp16` or `.bf16`.
        op: `Average` (the default), `Sum`, `Min`, `Max`, `Product` or `Adasum`. The average of integers is truncated
            toward zero; of bool, `Min` is the logical and, `Max` the logical or. `Min` and `Max` of floating-point
            numbers are NaN where any rank's value is. `Adasum`, the adaptive sum, takes the whole tensor for one
            vector: see docs/operations.md.
        prescale_factor: Multiplies every rank's tensor before the reduction. For integers the product is truncated.
            Not for `Adasum`.
        postscale_factor: Multiplies the result. Not for `Adasum`.
        name: The name on which ranks agree; needed only for concurrent calls in eager mode.
        process_set: The ranks that take part: `hvd.global_process_set`, the default, has all ranks. With a `ProcessSet`
            "all ranks" means its members.
        ignore_name_scope: Whether to leave the name scope around the call out of `name`.

    Returns:
        A tensor of the shape and dtype of `tensor`, with the same bits on all ranks. float16 and bfloat16 are combined
        in float32. For a `tf.IndexedSlices` another `tf.IndexedSlices` with unique indices: the rows of all ranks, and
        rows of the same index added up.

    Raises:
        ValueError: Both `average` and `op` are given, `op` is not supported, a factor has no meaning for the dtype or
            `op`, a `tf.IndexedSlices` has not one index for each row, or tfddl is not initialized.
        TypeError: `average` is not a bool, `name` no text, a factor no number, `compression` no compressor, `process_set`
            no ProcessSet, or the dtype is not supported by `op`.
        tf.errors.InvalidArgumentError: This rank is not a member of `process_set`, or that has been removed.
        tf.errors.FailedPreconditionError: On all ranks, when their calls do not fit together.

    Example:
        On 2 ranks:

        >>> x = tf.constant([1.0, 2.0]) + hvd.rank()  # [1, 2] and [2, 3]
        >>> hvd.allreduce(x).numpy()
        array([1.5, 2.5], dtype=float32)
        >>> hvd.allreduce(x, op=hvd.Max).numpy()
        array([2., 3.], dtype=float32)
    """
    op = reduce_op("allreduce", op, average)
    call = _Allreduce("allreduce", op, prescale_factor, postscale_factor, compression, process_set)
    return call.single(tensor, name, ignore_name_scope)


@tf.autograph.experimental.do_not_convert
@without_devices
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces several tensors. Ranks agree on all of them together, and all tensors of one dtype travel as one.

    Args, returns and raises are like those of `allreduce`, with lists of tensors. An empty list gives an empty list. None
    stays None; all ranks must have None at the same indices.

    Example:
        On 2 ranks:

        >>> loss, rows = hvd.grouped_allreduce([tf.constant(3.0), tf.constant(4)], op=hvd.Sum)
        >>> float(loss), int(rows)
        (6.0, 8)
    """
    op = reduce_op("grouped_allreduce", op, average)
    call = _Allreduce("grouped_allreduce", op, prescale_factor, postscale_factor, compression, process_set)
    return call.grouped(tensors, name, ignore_name_scope)


class _Allreduce(ReductionCall):
    """A call of allreduce, which takes `tf.IndexedSlices` as well."""

    operations = REDUCTIONS
    native_op = native.allreduce

    def prepare(self, value: Any) -> Any:
        if isinstance(value, tf.IndexedSlices):
            check_callable(self.kind)
            return value
        return prepare(value, self.kind, self.op)

    def reduce(self, tensors: list[Any], name: str, context: str) -> list[Any]:
        if not isinstance(tensors[0], tf.IndexedSlices):
            return super().reduce(tensors, name, context)
        (slices,) = tensors
        reduction = SlicesReduction(
            self.kind, self.op, self.compression, self.prescale, self.postscale, self.process_set
        )
        return [allreduce_slices(slices, name, context, reduction)]


def reduce_op(kind: str, op: int | None, average: bool | None) -> int:
    """The operation that `op` or the deprecated `average` asks for.

    Raises:
        TypeError: `average` is no bool.
        ValueError: Both are given.
    """
    if average is None:
        return Average if op is None else op
    if not isinstance(average, (bool, np.bool_)):
        raise TypeError(
            f"{kind} takes `average` (deprecated) as its second argument, which is True or False; give the "
            f"operation as op=hvd.Sum. Received: average={average!r}"
        )
    if op is not None:
        raise ValueError(
            f"Give `op` or the deprecated `average`, not both. Received: op={op}, average={average}"
        )
    warn_deprecated("`average` is deprecated; use op=hvd.Average or op=hvd.Sum")
    return Average if average else Sum
