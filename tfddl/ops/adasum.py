"""The adaptive sum of Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfddl.ops import names, native
from tfddl.ops.constants import Sum
from tfddl.runtime.process_sets import ProcessSet, id_of, members, rank_in


def adaptive_sum(vectors: tf.Tensor, leaves: tf.Tensor) -> tf.Tensor:
    """Computes in one process the result of allreduce with op=Adasum; custom_ops/core/collectives/adasum.h has the tree.

    Args:
        vectors: `[participants + 1, ...]`, of a floating-point dtype: one vector for each participant, and a last one
            of zeros. The sum of a vector and zeros is the vector.
        leaves: The result of `tree_leaves`.

    Returns:
        The adaptive sum of the vectors, without the first dimension.
    """
    parts = tf.unstack(tf.gather(vectors, leaves), leaves.shape[0])
    while len(parts) > 1:
        parts = [_pair_sum(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def tree_leaves(count: tf.Tensor, size: int) -> tf.Tensor:
    """Returns the leaves of the binary tree whose inner nodes are the sums of pairs.

    With P the largest power of two not above `count`, the leaves are 0, P, 1, P + 1, and so on.

    Args:
        count: A scalar of int64: the number of participants. It is known when the graph runs, since ranks may have joined.
        size: The number of ranks, which fixes the number of leaves.

    Returns:
        int64, `[leaves]`: the index of a participant, or `count` for a leaf without one.
    """
    powers = [1 << bit for bit in range(size.bit_length())]
    paired = tf.reduce_max([tf.where(count >= power, tf.constant(power, tf.int64), 1) for power in powers])
    leaves = tf.range(2 * powers[-1], dtype=tf.int64)
    participants = leaves // 2 + leaves % 2 * paired  # the pair of rank r and rank r + P
    return tf.where((leaves // 2 < paired) & (participants < count), participants, count)


def _pair_sum(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    x, y = tf.cast(a, tf.float64), tf.cast(b, tf.float64)
    dot = tf.reduce_sum(x * y)
    return tf.cast(_weight(x, dot) * x + _weight(y, dot) * y, a.dtype)


def _weight(x: tf.Tensor, dot: tf.Tensor) -> tf.Tensor:
    """1 - dot / 2|x|^2, the weight of `x` in the sum of a pair; 1 for a vector of zeros."""
    return 1 - tf.math.divide_no_nan(dot, 2 * tf.reduce_sum(x * x))


def gradient(
    inputs: Sequence[tf.Tensor], cotangents: Sequence[tf.Tensor], name: str, process_set: ProcessSet
) -> list[tf.Tensor]:
    """The vector-Jacobian product at this rank's own inputs.

    The derivative of each pair needs both vectors. Therefore this rank gathers the inputs of all ranks that have not
    joined, and differentiates the tree. A zero vector has no derivative: its weight counts as constant.
    """
    number, size, rank = id_of(process_set, "allreduce"), len(members(process_set)), rank_in(process_set)
    totals = native.allreduce(cotangents, Sum, name, process_set=number)
    results = []
    for index, (x, total) in enumerate(zip(inputs, totals, strict=True)):
        (parts,), rows, _ = native.gather(
            [x[tf.newaxis]], names.numbered(f"{name}.vectors.{index}", number), process_set=number
        )
        vectors = tf.concat([parts, tf.zeros_like(x)[tf.newaxis]], axis=0)
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            y = adaptive_sum(vectors, tree_leaves(tf.reduce_sum(rows[0]), size))
        gradients = tf.convert_to_tensor(tape.gradient(y, vectors, output_gradients=total))
        results.append(tf.gather(gradients, tf.reduce_sum(rows[0, :rank])))
    return results
