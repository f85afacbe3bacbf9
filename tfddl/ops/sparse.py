"""allreduce of tf.IndexedSlices: rows of a tensor that is zero elsewhere, as the gradient of an embedding."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.ops import native
from tfddl.ops.compression import Compression, run_compressed
from tfddl.ops.constants import NAMES, Average, Sum
from tfddl.ops.dtypes import check_dtype
from tfddl.ops.scaling import scaled
from tfddl.runtime.process_sets import ProcessSet, global_process_set, id_of


def allreduce_slices(
    slices: tf.IndexedSlices,
    op: int,
    name: str,
    *,
    kind: str = "allreduce",
    compression: Any = Compression.none,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet = global_process_set,
    context: str = "",
) -> tf.IndexedSlices:
    """Gathers the rows of all ranks, and adds up those with the same index.

    Rows must be merged because optimizers that are not linear, and clipping, would take two rows of one index for
    independent: Keras 3 does not look.

    Args:
        slices: This rank's rows; any number of them, also none.
        op: `Average` or `Sum`.
        name: Equal on all ranks.
        kind: The caller, for error messages.
        compression: Applied to the values.
        prescale: Multiplies the values of each rank.
        postscale: Multiplies the result.
        process_set: Whose ranks take part.
        context: What else all ranks must agree on, in words.

    Returns:
        Slices with unique indices, equal on all ranks.

    Raises:
        ValueError: For another `op`: where a rank has no row its value is zero, and the result would be dense. Or
            inside a function compiled by XLA.
        TypeError: `compression` is no compressor, or the dtype is not supported.
    """
    if _compat.in_xla_context():
        raise ValueError(
            f"{kind} of tf.IndexedSlices cannot run inside a function compiled by XLA, whose shapes are fixed: "
            "convert it with tf.convert_to_tensor(...), or use jit_compile=False. Received: jit_compile=True"
        )
    if op not in (Average, Sum):
        raise ValueError(
            f"{kind} of tf.IndexedSlices supports op=Average and op=Sum: convert it with tf.convert_to_tensor(...) "
            f"for others. Received: op={NAMES.get(op, op)}"
        )
    check_dtype(kind, slices.values.dtype, op)
    number = id_of(process_set, kind)
    # A rank that reduces a dense tensor by this name gets an error, and so do the others.
    context = f"rows of a tf.IndexedSlices {context}".strip()
    gathered = []

    def gather(compressed: list[tf.Tensor]) -> list[tf.Tensor]:
        gathered.append(native.gather(compressed, name, context, number))
        return gathered[0].results

    (values,) = run_compressed(gather, [scaled(slices.values, prescale)], compression)
    divisor = gathered[0].divisor
    indices = native.allgather(slices.indices, f"{name}.indices", number)
    # The accelerator's sums come in no fixed order, so that ranks would differ in the last bits.
    with tf.device("CPU:0"):
        merged, unique = _merged(values, indices)
    if op == Average and merged.dtype.is_integer and postscale == 1:
        result = tf.cast(tf.truncatediv(merged, tf.cast(divisor, merged.dtype)), slices.values.dtype)
    else:
        factor = postscale / tf.cast(divisor, tf.float64) if op == Average else postscale
        result = tf.cast(scaled(merged, factor), slices.values.dtype)
    return tf.IndexedSlices(result, unique, slices.dense_shape)


def _merged(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows with unique indices, in a wider type where there is one, to be rounded or to wrap once."""
    if values.dtype in (tf.float16, tf.bfloat16):
        values = tf.cast(values, tf.float32)
    elif values.dtype.is_integer and values.dtype.size < 8:
        values = tf.cast(values, tf.int64)
    unique, places = tf.unique(indices)
    return tf.math.unsorted_segment_sum(values, places, tf.size(unique)), unique
