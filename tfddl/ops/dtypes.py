"""The dtypes of each operation, one table for the checks, docs and tests; and how a dtype is scaled."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tfddl.ops.constants import NAMES, Adasum, Average, Max, Min, Product, Sum

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
DTYPES = (*FLOATS, *INTEGERS, "bool", *COMPLEX)

REDUCTIONS = {
    Average: FLOATS + INTEGERS + COMPLEX,
    Sum: FLOATS + INTEGERS + COMPLEX,
    Min: (*FLOATS, *INTEGERS, "bool"),
    Max: (*FLOATS, *INTEGERS, "bool"),
    Product: FLOATS + INTEGERS + COMPLEX,
    Adasum: FLOATS,
}
"""The dtypes of allreduce by operation; `broadcast`, `allgather` and `alltoall` take all of `DTYPES`."""

SCATTERED = (Average, Sum)
"""The operations of reducescatter, for the same dtypes."""


def check_op(kind: str, op: int, operations: Collection[int] = REDUCTIONS) -> int:
    """Returns `op` if it is one of the operations.

    Raises:
        ValueError: `op` is another operation.
    """
    if op not in operations:
        supported = ", ".join(NAMES[known] for known in operations)
        raise ValueError(
            f"{kind} supports op={supported}: choose one of them. Received: op={NAMES.get(op, op)!r}"
        )
    return int(op)


def check_dtype(kind: str, dtype: tf.DType, op: int | None = None) -> None:
    """Refuses a dtype that the collective does not take.

    Raises:
        TypeError: `dtype` is not in the table; the message has an alternative.
    """
    supported = DTYPES if op is None else REDUCTIONS[op]
    if dtype.name in supported:
        return
    call = kind if op is None else f"{kind} with op={NAMES[op]}"
    raise TypeError(f"{call} supports {', '.join(supported)}. Received: {dtype.name}. {_advice(dtype, op)}")


def check_factor(kind: str, argument: str, factor: Any) -> float:
    """Returns the argument `prescale_factor` or `postscale_factor` as a float.

    Raises:
        TypeError: It is no number, or a tensor whose value is not known yet.
    """
    try:
        if not isinstance(factor, (str, bytes)):
            return float(factor)
    except (TypeError, ValueError):
        pass
    raise TypeError(
        f"{argument} of {kind} must be a number: pass a float, and multiply by a tensor of a tf.function yourself. "
        f"Received: {argument}={factor!r}"
    )


def check_factors(kind: str, dtype: tf.DType, op: int, *factors: float) -> None:
    """Refuses factors that have no meaning for the dtype or the operation.

    Raises:
        ValueError: A factor other than 1 with a bool or Adasum, or an infinite one or NaN with integers.
    """
    if op == Adasum and any(factor != 1 for factor in factors):
        raise ValueError(
            f"{kind} with op=Adasum takes no prescale_factor and no postscale_factor: multiply its result instead, "
            f"which is the same as to multiply every rank's tensor. Received: {factors}"
        )
    if dtype == tf.bool and any(factor != 1 for factor in factors):
        raise ValueError(
            f"prescale_factor and postscale_factor of {kind} have no meaning for bool: leave them at 1. "
            f"Received: {factors}"
        )
    if dtype.is_integer and not all(math.isfinite(factor) for factor in factors):
        raise ValueError(
            f"prescale_factor and postscale_factor of {kind} must be finite for {dtype.name}: cast the tensor to a "
            f"floating-point dtype, or pass a finite number. Received: {factors}"
        )


def _advice(dtype: tf.DType, op: int | None) -> str:
    if op == Adasum and dtype.is_complex:
        return "Reduce the real and the imaginary part."
    if op == Adasum and dtype == tf.bool:
        return "Cast it to one of these with tf.cast."
    if dtype == tf.bool:
        return "Use op=Min for a logical and, op=Max for a logical or, or cast to int32 to count."
    if dtype.is_complex:
        return "Complex numbers have no order: reduce the absolute, real or imaginary value."
    if dtype == tf.string:
        return "Use broadcast_object or allgather_object for strings."
    if dtype == tf.resource:
        return "Pass what the resource holds, for example variable.value()."
    if dtype == tf.variant:
        return "Pass the tensors inside of it one by one."
    return "Cast it to one of these with tf.cast."


def scaled(x: tf.Tensor, factor: float | tf.Tensor, dtype: tf.DType | None = None) -> tf.Tensor:
    """Multiplies as the engine does: 16-bit floats in float32; integers in float64, truncated toward zero.

    Args:
        x: Of any dtype of a reduction but bool.
        factor: A float, or a scalar of float64.
        dtype: The dtype of the result, by default that of `x`. Integers beyond its range become its nearest number.

    Returns:
        A tensor of the shape of `x`. For the factor 1 it is `tf.cast(x, dtype)`.
    """
    dtype = dtype or x.dtype
    if isinstance(factor, float) and factor == 1:
        return tf.cast(x, dtype)
    if x.dtype.is_integer:
        product = tf.cast(x, tf.float64) * factor
        # float64 may be unable to hold dtype.max, which saturate_cast needs, but always holds the next power of two.
        beyond = 2.0 * (dtype.max // 2 + 1)
        return tf.where(product >= beyond, tf.constant(dtype.max, dtype), tf.saturate_cast(product, dtype))
    wide = tf.cast(x, tf.float32) if x.dtype.size == 2 else x
    return tf.cast(wide * tf.cast(factor, wide.dtype), dtype)
