"""Blocks of rows that went to the ranks and come back."""

from __future__ import annotations

import tensorflow as tf


def put_back(blocks: tf.Tensor, came: tf.Tensor, went: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Lays blocks where they had been, and zeros where none comes back, because its rank has joined.

    Args:
        blocks: The rows that came, in the order of the ranks.
        came: A vector: how many rows came from each rank.
        went: A vector: how many rows of `like`, from the first on, each rank's block has. Those behind went to nobody.
        like: A tensor of the result's shape.
    """
    present = tf.repeat(tf.equal(tf.cast(came, tf.int64), tf.cast(went, tf.int64)), went)
    result = tf.scatter_nd(tf.where(present), blocks, tf.shape(like, tf.int64))
    result.set_shape(like.shape)
    return result
