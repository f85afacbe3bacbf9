"""allreduce: the sum, average, minimum, maximum, product or adaptive sum over all ranks, on all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl.ops import allreduce_gradient, native  # noqa: F401 the first registers the gradient
from tfddl.ops.collective import check_callable, check_list, name_of, prepare, without_devices
from tfddl.ops.compression import Compression, run_compressed
from tfddl.ops.constants import Average, Sum
from tfddl.ops.dtypes import check_factors, check_op
from tfddl.ops.grouped import in_groups
from tfddl.ops.sparse import allreduce_slices
from tfddl.runtime.process_sets import ProcessSet, global_process_set, id_of


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
        tensor: What to reduce; of the same shape and dtype on all ranks. Which dtypes each `op` takes is a table in
            docs/operations.md. Or a `tf.IndexedSlices`, of which ranks may have different numbers of rows; with
            `Average` and `Sum` only.
        average: Deprecated; use `op`.
        compression: What the tensor is turned into for the way: `Compression.none`, `.fp16` or `.bf16`.
        op: `Average` (the default), `Sum`, `Min`, `Max`, `Product` or `Adasum`. The average of integers is truncated
            toward zero; of bool, `Min` is the logical and, `Max` the logical or. `Min` and `Max` of floating-point
            numbers are NaN where any rank's value is. `Adasum`, the adaptive sum, takes the whole tensor for one
            vector: see docs/operations.md.
        prescale_factor: Multiplies every rank's tensor before the reduction. For integers the product is truncated.
            Not for `Adasum`.
        postscale_factor: Multiplies the result. Not for `Adasum`.
        name: On which ranks agree; needed only where calls are made concurrently in eager mode.
        process_set: The ranks that take part: `hvd.global_process_set`, which is all of them, or a `ProcessSet`. "All
            ranks" means its members.
        ignore_name_scope: Whether `name` is taken without the name scope around the call.

    Returns:
        A tensor of the shape and dtype of `tensor`, with the same bits on all ranks. float16 and bfloat16 are combined
        in float32. For a `tf.IndexedSlices` another one, with the rows of all ranks, those of the same index added up.

    Raises:
        ValueError: Both `average` and `op` are given, `op` is not supported, a factor has no meaning for the dtype or
            `op`, or tfddl is not initialized.
        TypeError: `average` is not a bool, `compression` no compressor, `process_set` no ProcessSet, or the dtype is not
            supported by `op`.
        tf.errors.InvalidArgumentError: This rank is not a member of `process_set`, or that has been removed.
        tf.errors.FailedPreconditionError: On all ranks, when their calls do not fit together.
    """
    number = id_of(process_set, "allreduce")
    op = _operation("allreduce", op, average)
    factors = float(prescale_factor), float(postscale_factor)
    (result,) = _reduce(
        [_prepared(tensor, "allreduce", op, factors)],
        compression,
        op,
        factors,
        name_of("allreduce", name, ignore_name_scope, number),
        "",
        process_set,
    )
    return result


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
    """Reduces several tensors as one (per dtype): agreed on together and moved in one piece.

    Args, returns and raises are those of `allreduce`, with lists of tensors. An empty list gives an empty list, and None
    stays None in its place, which must be the same on all ranks.
    """
    check_list("grouped_allreduce", tensors)
    number = id_of(process_set, "grouped_allreduce")
    op = _operation("grouped_allreduce", op, average)
    factors = float(prescale_factor), float(postscale_factor)
    if all(tensor is None for tensor in tensors):
        return list(tensors)
    group = name_of("grouped_allreduce", name, ignore_name_scope, number)
    return in_groups(
        tensors,
        lambda tensor: _prepared(tensor, "grouped_allreduce", op, factors),
        lambda members, suffix, context: _reduce(
            members, compression, op, factors, group + suffix, context, process_set
        ),
    )


def _operation(kind: str, op: int | None, average: bool | None) -> int:
    if average is not None:
        if not isinstance(average, (bool, np.bool_)):
            raise TypeError(
                f"{kind} takes `average` (deprecated) as its second argument, which is True or False; give the "
                f"operation as op=hvd.Sum. Received: average={average!r}"
            )
        if op is not None:
            raise ValueError(
                f"Give `op` or the deprecated `average`, not both. Received: op={op}, average={average}"
            )
        warnings.warn(
            "`average` is deprecated; use op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=3
        )
        return Average if average else Sum
    return check_op(kind, Average if op is None else op)


def _prepared(value: Any, kind: str, op: int, factors: tuple[float, float]) -> Any:
    if isinstance(value, tf.IndexedSlices):
        check_callable(kind)
    else:
        value = prepare(value, kind, op)
    check_factors(kind, value.dtype, op, *factors)
    return value


def _reduce(
    tensors: list[Any],
    compression: Any,
    op: int,
    factors: tuple[float, float],
    name: str,
    context: str,
    process_set: ProcessSet,
) -> list[Any]:
    prescale, postscale = factors
    if isinstance(tensors[0], tf.IndexedSlices):
        return [
            allreduce_slices(
                slices,
                op,
                name,
                compression=compression,
                prescale=prescale,
                postscale=postscale,
                process_set=process_set,
                context=context,
            )
            for slices in tensors
        ]
    number = id_of(process_set, "allreduce")
    return run_compressed(
        lambda compressed: native.allreduce(
            compressed,
            op,
            name,
            prescale=prescale,
            postscale=postscale,
            context=context,
            process_set=number,
        ),
        tensors,
        compression,
    )
