"""reducescatter: the reduction over all ranks; each rank gets a part of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl import _graphs
from tfddl.ops import names, native
from tfddl.ops.blocks import put_back
from tfddl.ops.collective import prepare_rows, without_devices
from tfddl.ops.compression import Compression
from tfddl.ops.constants import Average, Sum
from tfddl.ops.dtypes import SCATTERED, scaled
from tfddl.ops.reduction_call import ReductionCall
from tfddl.runtime.process_sets import ProcessSet, by_id, global_process_set, members, rank_in


@tf.autograph.experimental.do_not_convert
@without_devices
def reducescatter(
    tensor: Any,
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces a tensor over all ranks and splits the result along the first dimension.

    Args:
        tensor: The tensor to reduce, with one dimension or more; of the same shape and dtype on all ranks.
        compression: See `allreduce`.
        op: `Average` (the default) or `Sum`; see `allreduce`.
        name: See `allreduce`.
        process_set: See `allreduce`. The members get the rows in the order of their ranks.
        ignore_name_scope: See `allreduce`.
        prescale_factor: See `allreduce`.
        postscale_factor: See `allreduce`.

    Returns:
        This rank's rows of the result of `allreduce`. Of `d` rows each of `n` ranks gets `d // n` in the order of the ranks,
        and the first `d % n` ranks get one more.

    Raises:
        ValueError: `tensor` is a scalar, `op` is not supported, a factor has no meaning for the dtype, or tfddl is not
            initialized.
        TypeError: `name` is no text, a factor no number, `compression` no compressor, or the dtype is not supported by
            `op`.
        tf.errors.FailedPreconditionError: On all ranks, when their calls do not fit together.

    Example:
        On 2 ranks:

        >>> part = hvd.reducescatter(tf.constant([1.0, 2.0, 3.0, 4.0]), op=hvd.Sum)
        >>> hvd.allgather_object(part.numpy().tolist())
        [[2.0, 4.0], [6.0, 8.0]]
    """
    call = _Reducescatter("reducescatter", op, prescale_factor, postscale_factor, compression, process_set)
    return call.single(tensor, name, ignore_name_scope)


@tf.autograph.experimental.do_not_convert
@without_devices
def grouped_reducescatter(
    tensors: Sequence[Any],
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces and splits several tensors. Ranks agree on all of them together, and all of one dtype travel as one.

    Args, returns and raises are like those of `reducescatter`, with lists of tensors. Each tensor is split along its own
    first dimension. An empty list gives an empty list. None stays None; all ranks must have None at the same indices.
    """
    call = _Reducescatter(
        "grouped_reducescatter", op, prescale_factor, postscale_factor, compression, process_set
    )
    return call.grouped(tensors, name, ignore_name_scope)


class _Reducescatter(ReductionCall):
    """A call of reducescatter, which takes tensors that have rows."""

    operations = SCATTERED
    native_op = native.reducescatter

    def prepare(self, value: Any) -> tf.Tensor:
        return prepare_rows(value, self.kind, self.op)


@tf.RegisterGradient("TfddlReducescatter")
def _gradient(operation: Any, *cotangents: tf.Tensor) -> list[tf.Tensor]:
    """Each row of the result depends on this row of every rank, so all ranks get the cotangent of the row."""
    name, number = names.of_gradient(operation)
    factor = float(operation.get_attr("prescale")) * float(operation.get_attr("postscale"))
    size, average = len(members(by_id(number))), operation.get_attr("reduce_op") != Sum
    # A cotangent that a program gives may have another dtype.
    dense = [
        tf.cast(tf.convert_to_tensor(each), x.dtype)
        for each, x in zip(cotangents, operation.inputs, strict=True)
    ]
    if _graphs.in_xla_context():
        factor = factor / size if average else factor
        return [scaled(total, factor) for total in _in_fixed_shapes(operation.inputs, dense, name, number)]
    gathered = native.gather(dense, name, process_set=number)
    if average:
        factor = factor / tf.cast(gathered.divisor, tf.float64)
    return [
        scaled(put_back(total, came, _rows_by_rank(x, size), x), factor)
        for x, total, came in zip(operation.inputs, gathered.results, tf.unstack(gathered.rows), strict=True)
    ]


def _rows_by_rank(x: tf.Tensor, size: int) -> tf.Tensor:
    rows = tf.shape(x, tf.int64)[0]
    return rows // size + tf.cast(tf.range(size, dtype=tf.int64) < rows % size, tf.int64)


def _in_fixed_shapes(
    inputs: Sequence[tf.Tensor], cotangents: Sequence[tf.Tensor], name: str, process_set: int
) -> list[tf.Tensor]:
    """Gathers the rows by a sum of padded tensors: XLA's allgather takes equally many rows from all ranks."""
    rank, size = rank_in(by_id(process_set)), len(members(by_id(process_set)))
    padded = []
    for x, cotangent in zip(inputs, cotangents, strict=True):
        rows = x.shape[0] if x.shape[0] is not None else tf.shape(x)[0]
        begin, end = (rows // size * r + tf.minimum(r, rows % size) for r in (rank, rank + 1))
        around = [[begin, rows - end]] + [[0, 0]] * (x.shape.rank - 1)
        padded.append(tf.pad(cotangent, around))
    return native.allreduce(padded, Sum, name, process_set=process_set)
