"""Ranks and sizes as tensors that are computed when a graph runs, not when it is built."""

from __future__ import annotations

import tensorflow as tf

from tfddl.ops import native


def rank_op(name: str | None = None) -> tf.Tensor:
    """See `rank`.

    Args:
        name: Of the operation in the graph.

    Returns:
        A scalar of int32.

    Raises:
        tf.errors.FailedPreconditionError: When it runs and tfddl is not initialized.
    """
    return native.place("rank", name)


def size_op(name: str | None = None) -> tf.Tensor:
    """See `size`. Args, returns and raises are those of `rank_op`."""
    return native.place("size", name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """See `local_rank`. Args, returns and raises are those of `rank_op`."""
    return native.place("local_rank", name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """See `local_size`. Args, returns and raises are those of `rank_op`."""
    return native.place("local_size", name)


tf.no_gradient("TfddlPlace")
