"""The way back of rows that a collective has sent to the ranks."""

from __future__ import annotations

import tensorflow as tf


def put_back(blocks: tf.Tensor, came: tf.Tensor, went: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Puts the rows that come back from each rank at the offset from which they were sent.

    Args:
        blocks: `[sum of came, ...]`: the rows that came back, in the order of the ranks.
        came: `[ranks]`: the number of rows that came back from each rank; 0 from a rank that has joined.
        went: `[ranks]`: the number of rows that were sent to each rank, from the first row of `like` on.
        like: A tensor of the result's shape.

    Returns:
        A tensor of the shape of `like`, with zeros for rows that do not come back or were not sent.
    """
    present = tf.repeat(tf.equal(tf.cast(came, tf.int64), tf.cast(went, tf.int64)), went)
    # Not tf.scatter_nd, which refuses rows without elements.
    result = tf.math.unsorted_segment_sum(blocks, tf.where(present)[:, 0], tf.shape(like, tf.int64)[0])
    result.set_shape(like.shape)
    return result
