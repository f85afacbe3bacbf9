"""The product of a tensor and a factor, rounded once."""

from __future__ import annotations

import tensorflow as tf


def scaled(x: tf.Tensor, factor: float | tf.Tensor) -> tf.Tensor:
    """Multiplies as the engine does: 16-bit floats in float32; integers in float64, truncated toward zero.

    Args:
        x: Of any dtype of a reduction but bool.
        factor: A float, or a scalar of float64.

    Returns:
        A tensor of the shape and dtype of `x`; `x` itself for the factor 1.
    """
    if isinstance(factor, float) and factor == 1:
        return x
    if x.dtype.is_integer:
        return tf.cast(tf.cast(x, tf.float64) * factor, x.dtype)
    wide = tf.cast(x, tf.float32) if x.dtype.size == 2 else x
    return tf.cast(wide * tf.cast(factor, wide.dtype), x.dtype)
