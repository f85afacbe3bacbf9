"""The adaptive sum of Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfddl.ops import native
from tfddl.ops.allgather import allgather
from tfddl.ops.constants import Sum
from tfddl.runtime.process_sets import ProcessSet, id_of, members, place_in


def tree(vectors: tf.Tensor, size: int) -> tf.Tensor:
    """What allreduce with op=Adasum computes, in one process: the tree is told in custom_ops/core/adasum.h.

    Args:
        vectors: One for each rank, `[size, ...]`, of a floating-point dtype.
        size: The number of ranks.

    Returns:
        Their adaptive sum.
    """
    parts = tf.unstack(vectors, size)
    power = 1 << (size.bit_length() - 1)
    for guest in range(power, size):
        parts[guest - power] = _pair(parts[guest - power], parts[guest])
    parts = parts[:power]
    while len(parts) > 1:
        parts = [_pair(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _pair(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    x, y = tf.cast(a, tf.float64), tf.cast(b, tf.float64)
    dot = tf.reduce_sum(x * y)
    return tf.cast(_share(x, dot) * x + _share(y, dot) * y, a.dtype)


def _share(x: tf.Tensor, dot: tf.Tensor) -> tf.Tensor:
    """1 - dot / 2|x|^2; a vector without a length is orthogonal to all."""
    return 1 - tf.math.divide_no_nan(dot, 2 * tf.reduce_sum(x * x))


def gradient(
    inputs: Sequence[tf.Tensor], cotangents: Sequence[tf.Tensor], name: str, process_set: ProcessSet
) -> list[tf.Tensor]:
    """The vector-Jacobian product at this rank's own inputs.

    Each pair's derivative needs both of its vectors, so the inputs of all ranks are gathered, and the tree is
    differentiated here. At a zero vector, where there is no derivative, its share of the sum counts as constant.
    """
    size, rank = len(members(process_set)), place_in(process_set)
    totals = native.allreduce(cotangents, Sum, name, process_set=id_of(process_set, "allreduce"))
    results = []
    for index, (x, total) in enumerate(zip(inputs, totals, strict=True)):
        parts = allgather(
            x[tf.newaxis], name=f"{name}.vectors.{index}", ignore_name_scope=True, process_set=process_set
        )
        with tf.GradientTape() as tape:
            tape.watch(parts)
            y = tree(parts, size)
        results.append(tape.gradient(y, parts, output_gradients=total)[rank])
    return results
