"""What is alike wherever tfddl itself adds up the gradients of several passes, in TF1 and in Keras 2."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf


def dense(gradient: Any, sparse_as_dense: bool, wanted: str) -> tf.Tensor:
    """The gradient as a tensor, which can be added up.

    Args:
        gradient: A tensor or a `tf.IndexedSlices`.
        sparse_as_dense: Whether a `tf.IndexedSlices` becomes dense; else it is an error.
        wanted: What adds up, in words.

    Raises:
        ValueError: For a `tf.IndexedSlices` that is to stay one.
    """
    if isinstance(gradient, tf.IndexedSlices) and not sparse_as_dense:
        raise ValueError(
            f"{wanted} adds up dense gradients: use sparse_as_dense=True. Received: {gradient!r}"
        )
    return tf.convert_to_tensor(gradient)


def mean_or_sum(sums: Iterable[Any], passes: int, average: bool) -> list[tf.Tensor]:
    """What becomes of the sums, variables that hold `passes` gradients each: their mean, or themselves."""
    scale = passes if average else 1
    return [total.read_value() / tf.cast(scale, total.dtype) for total in sums]
