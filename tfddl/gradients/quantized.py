"""The mean of tensors over the ranks, whose values travel as int8 with one scale for each block."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfddl.ops.allgather import allgather
from tfddl.ops.alltoall import alltoall
from tfddl.runtime.process_sets import ProcessSet, members

BLOCK = 256
"""Values that share a scale."""
_LARGEST = 127.0


def mean(tensors: Sequence[tf.Tensor], name: str, process_set: ProcessSet, seed: int) -> list[tf.Tensor]:
    """The mean over the ranks, in two steps: each rank gets a slice of all ranks, then all ranks get all means.

    Values are rounded twice, before each step, up or down at random, so that the mean of many results is the true mean
    (stochastic rounding, QSGD, arXiv 1610.02132, with the largest value of a block as its scale). A value is wrong by at
    most 1/127 of the largest in its block, each time. A block with an infinity or a NaN becomes NaN.

    Args:
        tensors: Floating-point tensors of fully known shapes, the same on all ranks.
        name: Names the collectives.
        process_set: The ranks.
        seed: Of the roundings: a new one for each call.

    Returns:
        The means, in the dtypes of the tensors; the same bits on all ranks.
    """
    size = len(members(process_set))
    flat = tf.concat([tf.reshape(tf.cast(each, tf.float32), [-1]) for each in tensors], axis=0)
    count = int(flat.shape[0])
    blocks = -(-count // (BLOCK * size)) * size
    padded = tf.pad(flat, [[0, blocks * BLOCK - count]])
    values, scales = quantize(tf.reshape(padded, [blocks, BLOCK]), [seed, process_set.rank() or 0])
    values = alltoall(values, name=f"{name}.values", process_set=process_set)
    scales = alltoall(scales, name=f"{name}.scales", process_set=process_set)
    slices = tf.reshape(dequantize(values, scales), [size, blocks // size, BLOCK])
    values, scales = quantize(tf.reduce_mean(slices, axis=0), [seed, size + (process_set.rank() or 0)])
    values = allgather(values, name=f"{name}.mean_values", process_set=process_set)
    scales = allgather(scales, name=f"{name}.mean_scales", process_set=process_set)
    means = tf.reshape(dequantize(values, scales), [-1])[:count]
    parts = tf.split(means, [each.shape.num_elements() for each in tensors])
    return [
        tf.cast(tf.reshape(part, each.shape), each.dtype) for part, each in zip(parts, tensors, strict=True)
    ]


def quantize(blocks: tf.Tensor, seed: Sequence[int]) -> tuple[tf.Tensor, tf.Tensor]:
    """Rounds blocks to int8.

    Args:
        blocks: float32, `[blocks, BLOCK]`.
        seed: Two ints.

    Returns:
        int8 `[blocks, BLOCK]` from -127 to 127, and the scales, float32 `[blocks]`.
    """
    scales = tf.reduce_max(tf.abs(blocks), axis=1) / _LARGEST
    exact = tf.math.divide_no_nan(blocks, scales[:, tf.newaxis])
    rounded = tf.floor(exact + tf.random.stateless_uniform(tf.shape(blocks), seed))
    return tf.cast(tf.clip_by_value(rounded, -_LARGEST, _LARGEST), tf.int8), scales


def dequantize(values: tf.Tensor, scales: tf.Tensor) -> tf.Tensor:
    """The inverse of `quantize`, but for the rounding."""
    return tf.cast(values, tf.float32) * scales[:, tf.newaxis]
