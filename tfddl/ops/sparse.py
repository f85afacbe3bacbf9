"""allreduce of tf.IndexedSlices: rows of a tensor that is zero elsewhere, for example the gradient of an embedding."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfddl import _graphs
from tfddl.ops import native
from tfddl.ops.compression import run_compressed
from tfddl.ops.constants import NAMES, Average, Sum
from tfddl.ops.dtypes import check_dtype, scaled
from tfddl.runtime.process_sets import ProcessSet, id_of


class SlicesReduction(NamedTuple):
    """How to combine `tf.IndexedSlices`.

    Attributes:
        kind: The caller, for error messages.
        op: `Average` or `Sum`.
        compression: The format in which the values travel.
        prescale: Multiplies the values of each rank.
        postscale: Multiplies the result.
        process_set: The ranks that take part.
        merge: False leaves rows of the same index as they are, as one process leaves them.
    """

    kind: str
    op: int
    compression: Any
    prescale: float
    postscale: float
    process_set: ProcessSet
    merge: bool = True


def allreduce_slices(
    slices: tf.IndexedSlices, name: str, context: str, reduction: SlicesReduction
) -> tf.IndexedSlices:
    """Gathers the rows of all ranks, and adds up rows of the same index.

    The rows are merged because Keras 3 does not: clipping, and optimizers that are not linear, would treat two rows of one
    index as independent.

    Args:
        slices: This rank's rows, in any number.
        name: The name on which ranks agree.
        context: Further fields of the signature; see `native._attributes`.
        reduction: How to combine them.

    Returns:
        Slices, with unique indices if `reduction.merge`, equal on all ranks.

    Raises:
        ValueError: `op` is another operation, whose result would be dense because missing rows count as zero. `slices`
            has not one index for each row, as far as the shapes are known. Or XLA compiles the call.
        TypeError: `compression` is no compressor, or the dtype is not supported.
    """
    kind, op, compression, prescale, postscale, process_set, merge = reduction
    _check(kind, op, slices)
    number = id_of(process_set, kind)
    # If a rank reduces a dense tensor by this name, all ranks get an error.
    context = "|".join(filter(None, ("slices=rows of a tf.IndexedSlices", context)))
    dtype, gathered = slices.values.dtype, []
    if dtype in (tf.float16, tf.bfloat16):
        # The product of a value and the first factor may be out of the dtype's range.
        prescale, postscale = 1.0, prescale * postscale

    def gather(compressed: list[tf.Tensor]) -> list[tf.Tensor]:
        gathered.append(native.gather(compressed, name, context, number))
        return gathered[0].results

    (values,) = run_compressed(gather, [scaled(slices.values, prescale)], compression)
    divisor = gathered[0].divisor
    indices = native.allgather(slices.indices, f"{name}.indices", number)
    # A GPU adds up rows in no fixed order, so the ranks' results would differ in the last bits.
    with tf.device("CPU:0"):
        merged, unique = _merged(values, indices) if merge else (values, indices)
    if op == Average and merged.dtype.is_integer and postscale == 1:
        result = tf.cast(tf.truncatediv(merged, tf.cast(divisor, merged.dtype)), dtype)
    else:
        factor = postscale / tf.cast(divisor, tf.float64) if op == Average else postscale
        result = scaled(merged, factor, dtype)
    return tf.IndexedSlices(result, unique, slices.dense_shape)


def _check(kind: str, op: int, slices: tf.IndexedSlices) -> None:
    """Refuses a call as `allreduce_slices` says."""
    if _graphs.in_xla_context():
        raise ValueError(
            f"{kind} of tf.IndexedSlices cannot run inside a function compiled by XLA, whose shapes are fixed: "
            "convert it with tf.convert_to_tensor(...), or use jit_compile=False. Received: jit_compile=True"
        )
    if op not in (Average, Sum):
        raise ValueError(
            f"{kind} of tf.IndexedSlices supports op=Average and op=Sum: convert it with tf.convert_to_tensor(...) "
            f"for others. Received: op={NAMES.get(op, op)}"
        )
    _check_rows(kind, slices)
    check_dtype(kind, slices.values.dtype, op)


def _check_rows(kind: str, slices: tf.IndexedSlices) -> None:
    """Refuses slices with more indices than rows, or fewer: behind them, the next rank's rows would get wrong indices."""
    values, indices = slices.values.shape, tf.convert_to_tensor(slices.indices).shape  # or a list
    if not indices.is_compatible_with(values[:1]):
        raise ValueError(
            f"{kind} of tf.IndexedSlices takes one index for each row of values: pass a vector of indices that is as long "
            f"as values. Received: values of shape {values} and indices of shape {indices}"
        )


def _merged(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows with unique indices. 16-bit floats and small integers are added up in a wider dtype, and rounded later."""
    if values.dtype in (tf.float16, tf.bfloat16):
        values = tf.cast(values, tf.float32)
    elif values.dtype.is_integer and values.dtype.size < 8:
        values = tf.cast(values, tf.int64)
    unique, segments = tf.unique(indices)
    return tf.math.unsorted_segment_sum(values, segments, tf.size(unique)), unique
