"""The adaptive sum of Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfddl.ops import names, native
from tfddl.ops.constants import Sum
from tfddl.runtime.process_sets import ProcessSet, id_of, members, place_in


def tree(vectors: tf.Tensor, seats: tf.Tensor) -> tf.Tensor:
    """What allreduce with op=Adasum computes, in one process: the tree is told in custom_ops/core/collectives/adasum.h.

    Args:
        vectors: `[rows, ...]`, of a floating-point dtype: one for each rank that takes part, and a last one of zeros,
            with which a pair is the other vector.
        seats: Of `seats_of`.

    Returns:
        Their adaptive sum.
    """
    parts = tf.unstack(tf.gather(vectors, seats), seats.shape[0])
    while len(parts) > 1:
        parts = [_pair(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def seats_of(count: tf.Tensor, size: int) -> tf.Tensor:
    """Who sits side by side, so that pairs of neighbours, of their results and so on are the tree.

    Args:
        count: A scalar of int64, how many ranks take part: known when the graph runs, as some may have joined.
        size: The number of ranks, which fixes how many seats there are.

    Returns:
        int64, `[seats]`: the place of a rank among those that take part; `count` where a seat is empty.
    """
    powers = [1 << bit for bit in range(size.bit_length())]
    hosts = tf.reduce_max([tf.where(count >= power, tf.constant(power, tf.int64), 1) for power in powers])
    seats = tf.range(2 * powers[-1], dtype=tf.int64)
    places = seats // 2 + seats % 2 * hosts  # host r and its guest, r + hosts
    return tf.where((seats // 2 < hosts) & (places < count), places, count)


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

    Each pair's derivative needs both of its vectors, so the inputs of all ranks that have not joined are gathered, and
    the tree is differentiated here. At a zero vector, where there is no derivative, its share of the sum counts as constant.
    """
    number, size, rank = id_of(process_set, "allreduce"), len(members(process_set)), place_in(process_set)
    totals = native.allreduce(cotangents, Sum, name, process_set=number)
    results = []
    for index, (x, total) in enumerate(zip(inputs, totals, strict=True)):
        (parts,), rows, _ = native.gather(
            [x[tf.newaxis]], names.numbered(f"{name}.vectors.{index}", number), process_set=number
        )
        vectors = tf.concat([parts, tf.zeros_like(x)[tf.newaxis]], axis=0)
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            y = tree(vectors, seats_of(tf.reduce_sum(rows[0]), size))
        by_place = tf.convert_to_tensor(tape.gradient(y, vectors, output_gradients=total))
        results.append(tf.gather(by_place, tf.reduce_sum(rows[0, :rank])))
    return results
