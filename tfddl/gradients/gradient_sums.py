"""Sums of the gradients of several passes, for TF1 and Keras 2, whose optimizers do not accumulate by themselves."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf


def dense(gradient: Any, sparse_as_dense: bool, wanted: str) -> tf.Tensor:
    """Returns the gradient as a dense tensor, which can be added up.

    Args:
        gradient: A tensor or a `tf.IndexedSlices`.
        sparse_as_dense: Whether a `tf.IndexedSlices` becomes dense; else it is an error.
        wanted: The option that accumulates, for the error.

    Raises:
        ValueError: For a `tf.IndexedSlices` without `sparse_as_dense`.
    """
    if isinstance(gradient, tf.IndexedSlices) and not sparse_as_dense:
        raise ValueError(
            f"{wanted} adds up dense gradients: use sparse_as_dense=True. Received: {gradient!r}"
        )
    return tf.convert_to_tensor(gradient)


def mean_or_sum(sums: Iterable[Any], passes: int, average: bool) -> list[tf.Tensor]:
    """Returns the sums, or with `average` the means, of `passes` gradients each. `sums` are variables."""
    scale = passes if average else 1
    return [total.read_value() / tf.cast(scale, total.dtype) for total in sums]
