"""allreduce: the sum or average over all ranks, on all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl.gradients.compression import Compression
from tfddl.ops.collective import name_of, prepare, unchain
from tfddl.ops.constants import NAMES, Average, Sum
from tfddl.runtime import library


@tf.autograph.experimental.do_not_convert
def allreduce(
    tensor: Any,
    average: bool | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> tf.Tensor:
    """Reduces a tensor over all ranks.

    Args:
        tensor: What to reduce; of the same shape and dtype on all ranks: float16, bfloat16, float32, float64, int32 or
            int64.
        average: Deprecated; use `op`.
        compression: What the tensor is turned into for the way: `Compression.none`, `.fp16` or `.bf16`.
        op: `Average` (the default) or `Sum`. The average of integers is truncated toward zero.
        prescale_factor: Multiplies every rank's tensor before the sum. For integers the product is truncated.
        postscale_factor: Multiplies the result.
        name: On which ranks agree; needed only where calls are made concurrently in eager mode.
        ignore_name_scope: Whether `name` is taken without the name scope around the call.

    Returns:
        A tensor of the shape and dtype of `tensor`, with the same bits on all ranks. float16 and bfloat16 are summed
        in float32.

    Raises:
        ValueError: Both `average` and `op` are given, `op` is not supported, or tfddl is not initialized.
        TypeError: The dtype is not supported.
        tf.errors.FailedPreconditionError: On all ranks, when their calls do not fit together.
    """
    op = _operation(op, average)
    (result,) = _reduce(
        [prepare(tensor, "allreduce")],
        compression,
        op,
        prescale_factor,
        postscale_factor,
        name_of("allreduce", name, ignore_name_scope),
    )
    return result


@tf.autograph.experimental.do_not_convert
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Reduces several tensors as one (per dtype): agreed on together and moved in one piece.

    Args, returns and raises are those of `allreduce`, with lists of tensors. An empty list gives an empty list.
    """
    op = _operation(op, average)
    if not tensors:
        return []
    prepared = [prepare(tensor, "grouped_allreduce") for tensor in tensors]
    group = name_of("grouped_allreduce", name, ignore_name_scope)
    results: dict[int, tf.Tensor] = {}
    dtypes = sorted({tensor.dtype.name for tensor in prepared})
    for dtype in dtypes:  # one op each: only equal dtypes can travel as one
        members = [index for index, tensor in enumerate(prepared) if tensor.dtype.name == dtype]
        outputs = _reduce(
            [prepared[index] for index in members],
            compression,
            op,
            prescale_factor,
            postscale_factor,
            group if len(dtypes) == 1 else f"{group}.{dtype}",
        )
        results.update(zip(members, outputs, strict=True))
    return [results[index] for index in range(len(prepared))]


def reduce_bucket(
    tensors: list[tf.Tensor], *, op: int, sequence: str, bucket: int, buckets: int, signature: str
) -> list[tf.Tensor]:
    """Reduces one bucket of a gradient computation, whose buckets are agreed on by a single vote.

    Args:
        tensors: Tensors of one dtype.
        op: `Average` or `Sum`.
        sequence: Name of the computation, equal on all ranks.
        bucket: Number of this bucket, from 0.
        buckets: How many there are.
        signature: Describes all buckets; ranks that differ get an agreed error.
    """
    results: list[tf.Tensor] = library.ops().tfddl_allreduce(
        x=tensors,
        tensor_name=sequence,
        reduce_op=op,
        bucket=bucket,
        buckets=buckets,
        sequence_signature=signature,
    )
    unchain(results[0])
    return results


def _operation(op: int | None, average: bool | None) -> int:
    if average is not None:
        if op is not None:
            raise ValueError(
                f"Give `op` or the deprecated `average`, not both. Received: op={op}, average={average}"
            )
        warnings.warn(
            "`average` is deprecated; use op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=3
        )
        return Average if average else Sum
    op = Average if op is None else op
    if op not in (Average, Sum):
        raise ValueError(f"allreduce supports op=Average and op=Sum. Received: op={NAMES.get(op, op)}")
    return op


def _reduce(
    tensors: list[tf.Tensor], compression: Any, op: int, prescale: float, postscale: float, name: str
) -> list[tf.Tensor]:
    compressed, contexts = zip(*(compression.compress(tensor) for tensor in tensors), strict=True)
    results = library.ops().tfddl_allreduce(
        x=list(compressed),
        tensor_name=name,
        reduce_op=op,
        prescale=repr(float(prescale)),
        postscale=repr(float(postscale)),
    )
    unchain(results[0])
    return [compression.decompress(y, context) for y, context in zip(results, contexts, strict=True)]


@tf.RegisterGradient("TfddlAllreduce")
def _gradient(operation: Any, *cotangents: tf.Tensor) -> list[tf.Tensor]:
    """Every rank's result depends on every rank's input in the same way, so the vector-Jacobian product is the same
    reduction of the cotangents."""
    name = name_of(
        "allreduce", operation.get_attr("tensor_name").decode() + ".gradient", ignore_name_scope=True
    )
    results: list[tf.Tensor] = library.ops().tfddl_allreduce(
        x=list(cotangents),
        tensor_name=name,
        reduce_op=operation.get_attr("reduce_op"),
        prescale=operation.get_attr("prescale"),
        postscale=operation.get_attr("postscale"),
    )
    unchain(results[0])
    return results
