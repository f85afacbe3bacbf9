"""The vector-Jacobian products of allreduce.

The loss of a job is the sum of the ranks' losses, which all depend on the same result. Therefore the cotangent of the result
is the sum of the ranks' cotangents. Each function here computes from this sum the gradient at this rank's own input. Complex
cotangents are multiplied by the conjugate of the derivative, as in TensorFlow's own gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl.ops import adasum, names, native
from tfddl.ops.constants import Adasum, Average, Max, Min, Product, Sum
from tfddl.runtime.process_sets import ProcessSet, by_id, id_of, rank_in


@tf.RegisterGradient("TfddlAllreduce")
def _gradient(operation: Any, *cotangents: tf.Tensor) -> list[tf.Tensor]:
    return _of_group(operation, ".gradient", operation.inputs, operation.outputs, cotangents)


@tf.RegisterGradient("TfddlAllreduceBuckets")
def _gradient_of_buckets(operation: Any, *cotangents: tf.Tensor) -> list[tf.Tensor]:
    results: list[tf.Tensor] = []
    for number, count in enumerate(operation.get_attr("members")):
        here = slice(len(results), len(results) + count)
        tensors = operation.inputs[here], operation.outputs[here], cotangents[here]
        results += _of_group(operation, f".gradient.{number}", *tensors)
    return results


def _of_group(
    operation: Any,
    suffix: str,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    cotangents: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    op = operation.get_attr("reduce_op")
    name, number = names.of_gradient(operation, suffix)
    process_set = by_id(number)
    prescale, postscale = (float(operation.get_attr(f"{side}scale")) for side in ("pre", "post"))
    if op in (Average, Sum):
        return native.allreduce(
            cotangents, op, name, prescale=prescale, postscale=postscale, process_set=number
        )
    if op == Adasum:
        return adasum.gradient(inputs, cotangents, name, process_set)
    if op == Product:
        return _of_product(inputs, cotangents, name, (prescale, postscale), process_set)
    if prescale == postscale == 1:
        extremes = outputs
    else:  # the scaled result does not show which ranks had the extreme value
        opposite = prescale < 0
        unscaled = (Max if op == Min else Min) if opposite else op
        extremes = native.allreduce(inputs, unscaled, f"{name}.extremes", process_set=number)
    return _of_extremes(inputs, extremes, cotangents, name, prescale * postscale, number)


def _of_extremes(
    inputs: Sequence[tf.Tensor],
    extremes: Sequence[tf.Tensor],
    cotangents: Sequence[tf.Tensor],
    name: str,
    factor: float,
    process_set: int,
) -> list[tf.Tensor]:
    """The gradient of Min or Max: the ranks that have the extreme value, or a NaN, share the cotangent equally."""
    hits = []
    for x, y in zip(inputs, extremes, strict=True):
        hit = tf.equal(x, y) | (tf.math.is_nan(x) & tf.math.is_nan(y))
        hits.append(tf.cast(hit, x.dtype))
    reduced = native.allreduce([*cotangents, *hits], Sum, name, process_set=process_set)
    totals, counts = reduced[: len(hits)], reduced[len(hits) :]
    return [
        total * tf.constant(factor, total.dtype) * tf.stop_gradient(hit / count)
        for total, hit, count in zip(totals, hits, counts, strict=True)
    ]


def _of_product(
    inputs: Sequence[tf.Tensor],
    cotangents: Sequence[tf.Tensor],
    name: str,
    factors: tuple[float, float],
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    """The gradient of Product: the cotangent times the product of the other ranks' values.

    The values are gathered, because the product of all values cannot be divided by an own value of zero.
    """
    number, rank, (prescale, postscale) = id_of(process_set, "allreduce"), rank_in(process_set), factors
    totals = native.allreduce(cotangents, Sum, name, process_set=number)
    results = []
    for index, (x, total) in enumerate(zip(inputs, totals, strict=True)):
        # The product of 16-bit factors needs more than 16 bits on the way.
        wide = tf.cast(x, tf.float32) if x.dtype in (tf.float16, tf.bfloat16) else x
        (parts,), rows, _ = native.gather(
            [wide[tf.newaxis]], names.numbered(f"{name}.factors.{index}", number), process_set=number
        )
        mine = tf.reduce_sum(rows[0, :rank])  # a rank that has joined has no row
        others = tf.concat([parts[:mine], parts[mine + 1 :]], axis=0) * tf.constant(prescale, wide.dtype)
        derivative = tf.reduce_prod(others, axis=0) * tf.constant(prescale * postscale, wide.dtype)
        if derivative.dtype.is_complex:
            derivative = tf.math.conj(derivative)
        results.append(tf.cast(tf.cast(total, wide.dtype) * derivative, x.dtype))
    return results
