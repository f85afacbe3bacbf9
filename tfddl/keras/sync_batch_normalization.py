"""SyncBatchNormalization: batch normalization with the statistics of the batches of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.ops import allreduce_gradient, names, native  # noqa: F401 the first registers the gradient
from tfddl.ops.collective import check_callable
from tfddl.ops.constants import Sum
from tfddl.runtime import process_sets
from tfddl.runtime.process_sets import ProcessSet, global_process_set, id_of

_keras = _compat.keras()
_BatchNormalization: Any = _compat.batch_normalization()


@_keras.saving.register_keras_serializable(package="tfddl")
class SyncBatchNormalization(_BatchNormalization):
    """Batch normalization whose mean and variance in training are taken over the batches of all ranks.

    N ranks compute the same values, gradients and moving statistics as one process with the N-times batch. Ranks may have
    different numbers of rows, or none: each row has the same weight, and so has each step that a mask keeps. The moving
    statistics are equal on all ranks. In inference, and with `trainable=False`, the layer works like
    `keras.layers.BatchNormalization`, without communication.

    In training each call runs one collective of three float64 numbers per channel and rank, and the backward pass another
    one of two per channel, so all ranks have to call the layer. Each rank sums count, mean and squared distances to the mean
    in float32 (in float64 for a layer of that dtype), also for float16 and bfloat16; the sums are combined in float64. The
    variance keeps its digits if the mean is large compared with the standard deviation.

    Weights and configuration are those of `keras.layers.BatchNormalization`. A saved model contains this class as
    `"tfddl>SyncBatchNormalization"`, so that training from the file is synchronized too; docs/keras.md shows how a process
    without tfddl loads the file.

    Args:
        axis: The axis of the channels. Defaults to `-1`.
        process_set: The ranks whose batches are normalized together: a `ProcessSet`, or the list of its ranks, as in the
            layer's configuration. Defaults to all ranks.
        fused: Only `False`; for scripts written for Horovod.
        **kwargs: The other arguments of `keras.layers.BatchNormalization`.

    Raises:
        ValueError: `synchronized=True`, which is for `tf.distribute`, or another `fused`. In training: tfddl is not
            initialized, or `process_set` is not part of the job.
        TypeError: `process_set` is neither a `ProcessSet` nor a list of ranks.

    Call arguments:
        inputs: A tensor with any number of dimensions.
        training: Whether to use the batch's statistics.
        mask: A boolean tensor of the shape of `inputs` without the last dimension: True for positions that count.

    Reference:
        Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.

    Example:
        On 2 ranks:

        >>> x = tf.constant([[1.0 + 2 * hvd.rank()]])  # 1 and 3: mean 2, variance 1
        >>> y = hvd.SyncBatchNormalization(epsilon=1e-6)(x, training=True)
        >>> hvd.allgather_object(round(float(y[0, 0]), 3))
        [-1.0, 1.0]
    """

    def __init__(
        self,
        axis: int = -1,
        process_set: ProcessSet | Sequence[int] = global_process_set,
        fused: bool = False,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("synchronized"):
            raise ValueError(
                "SyncBatchNormalization takes the statistics of all ranks by itself; `synchronized` is for "
                "tf.distribute: leave it out. Received: synchronized=True"
            )
        if fused is not False:
            raise ValueError(
                f"SyncBatchNormalization has no fused kernel: leave it out. Received: fused={fused!r}"
            )
        super().__init__(axis=axis, **kwargs, **_compat.without_fused_kernel())
        self._process_set = _checked(process_set)

    @property
    def process_set(self) -> ProcessSet:
        """The ranks whose batches are normalized together."""
        return self._process_set

    def get_config(self) -> dict[str, Any]:
        """The configuration of a plain BatchNormalization, and the ranks of a process set."""
        config: dict[str, Any] = super().get_config()
        if self._process_set is not global_process_set:
            config["process_set"] = self._process_set.ranks
        return config

    def _moments(
        self, inputs: tf.Tensor, *arguments: Any, mask: Any = None, **options: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance of each channel over all ranks, for inputs of float32 or float64. Keras calls it."""
        axes, mask, keep_dims = _compat.moments_arguments(self, arguments, mask, options)
        mean, variance = synchronized_moments(inputs, mask, axes, self._process_set)
        if keep_dims:
            shape = [1 if axis in axes else size for axis, size in enumerate(tf.unstack(tf.shape(inputs)))]
            mean, variance = tf.reshape(mean, shape), tf.reshape(variance, shape)
        return mean, variance


def synchronized_moments(
    inputs: tf.Tensor, mask: Any, axes: Sequence[int], process_set: ProcessSet = global_process_set
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of each channel over all ranks.

    Args:
        inputs: Tensor of float32 or float64.
        mask: Boolean tensor of the shape of `inputs` without the last dimension, or None.
        axes: The axes to reduce.
        process_set: The ranks.

    Returns:
        Two tensors of the dtype of `inputs` with one number for each channel.
    """
    check_callable("SyncBatchNormalization")
    number = id_of(process_set, "SyncBatchNormalization")
    name = names.unique("SyncBatchNormalization", number)
    mean, variance = _combined(*_local_statistics(inputs, mask, axes), name, number)
    return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def _local_statistics(
    inputs: tf.Tensor, mask: Any, axes: Sequence[int]
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Count, mean and sum of squared distances to the mean of each channel of this rank's batch, in float64."""
    if mask is None:
        kept = None
        rows = tf.reduce_prod(tf.gather(tf.shape(inputs, tf.int64), axes))
        count = tf.fill(tf.shape(tf.reduce_sum(inputs, axes)), tf.cast(rows, tf.float64))
    else:
        kept = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))
        count = tf.cast(tf.math.count_nonzero(kept, axes), tf.float64)
        inputs = tf.where(kept, inputs, tf.zeros_like(inputs))
    # Near the mean, up to the rounding of the dtype; the sum of the distances corrects the rest.
    near = tf.stop_gradient(tf.math.divide_no_nan(tf.reduce_sum(inputs, axes), tf.cast(count, inputs.dtype)))
    center = near
    for axis in axes:
        center = tf.expand_dims(center, axis)
    distances = inputs - center
    if kept is not None:
        distances = tf.where(kept, distances, tf.zeros_like(distances))
    total, squares = (
        tf.cast(tf.reduce_sum(each, axes), tf.float64) for each in (distances, tf.square(distances))
    )
    shift = tf.math.divide_no_nan(total, count)
    return count, tf.cast(near, tf.float64) + shift, squares - total * shift


def _combined(
    count: tf.Tensor, mean: tf.Tensor, squares: tf.Tensor, name: str, process_set: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance over the rows of all ranks, by Chan's formula, which squares only distances between means.

    The backward pass adds up the gradients of mean and variance over the ranks. The gradient of the allgather itself would
    send the gradients of every rank's statistics.
    """

    @tf.custom_gradient
    def combine(mean: tf.Tensor, squares: tf.Tensor) -> Any:
        parts = native.allgather(tf.stack([count, mean, squares])[tf.newaxis], name, process_set)
        counts, means, distances = tf.unstack(parts, axis=1)
        rows = tf.reduce_sum(counts, 0)
        middle = tf.math.divide_no_nan(tf.reduce_sum(counts * means, 0), rows)
        distances += counts * tf.square(means - middle)
        variance = tf.math.divide_no_nan(tf.reduce_sum(distances, 0), rows)

        def gradient(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # Not the name of the allgather's own gradient, which TensorFlow computes too for a persistent tape. In a
            # SavedModel the two stand in two functions, where `numbered` does not tell them apart.
            backward = names.numbered(f"{name}.statistics.gradient", process_set)
            (totals,) = native.allreduce(
                [tf.stack([of_mean, of_variance])], Sum, backward, process_set=process_set
            )
            by_mean, by_variance = tf.unstack(tf.math.divide_no_nan(totals, rows))
            return count * (by_mean + 2 * by_variance * (mean - middle)), by_variance

        return (middle, variance), gradient

    middle, variance = combine(mean, squares)
    return middle, tf.maximum(variance, 0.0)


def _checked(value: Any) -> ProcessSet:
    """The process set, also if its ranks are given."""
    if isinstance(value, ProcessSet):
        return value
    if not isinstance(value, (list, tuple)):
        raise TypeError(
            "SyncBatchNormalization takes a ProcessSet, or its ranks as a list: pass what hvd.add_process_set returns. "
            f"Received: process_set={value!r}"
        )
    return process_sets.of_ranks(list(value))
