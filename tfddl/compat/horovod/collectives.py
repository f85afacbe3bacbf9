"""The collectives with Horovod's arguments, exceptions and gradients.

Horovod's first-order gradients of allgather, broadcast and reducescatter are those of tfddl times a factor. Losses were
tuned on them, so a program that runs through this package gets the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl.compat.horovod.exceptions import with_errors_of_the_operation
from tfddl.ops import allgather as gather
from tfddl.ops import allreduce as reduce
from tfddl.ops import alltoall as exchange
from tfddl.ops import broadcast as send
from tfddl.ops import reducescatter as scatter
from tfddl.ops import variables
from tfddl.ops.collective import check_list
from tfddl.ops.compression import Compression
from tfddl.ops.constants import Average, Sum
from tfddl.runtime.process_sets import ProcessSet, global_process_set, members

# Arguments and results are those of the functions of the same name in tfddl.ops. `device_dense` and `device_sparse` are
# accepted and change nothing: tensors are combined where they lie.


@with_errors_of_the_operation
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """See `tfddl.allreduce`. The average of integers in `tf.IndexedSlices` is a true division, in floating point.

    Raises:
        NotImplementedError: For `tf.IndexedSlices` with another `op` than Average and Sum, or with a factor.
    """
    options: dict[str, Any] = {"compression": compression, "process_set": process_set, "name": name}
    options["ignore_name_scope"] = ignore_name_scope
    factors = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    if not isinstance(tensor, tf.IndexedSlices):
        return reduce.allreduce(tensor, average, op=op, **factors, **options)
    _check_slices(op, **factors)
    if not tensor.values.dtype.is_integer or not _is_average(op, average):
        return reduce.allreduce(tensor, average, op=op, **options)
    return _divided(reduce.allreduce(tensor, op=Sum, **options), process_set)


@with_errors_of_the_operation
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """See `tfddl.grouped_allreduce`, and `allreduce` here for `tf.IndexedSlices`."""
    factors = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    check_list("grouped_allreduce", tensors)
    integers = []
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            _check_slices(op, **factors)
            if tensor.values.dtype.is_integer and _is_average(op, average):
                integers.append(index)
    options: dict[str, Any] = {"compression": compression, "process_set": process_set}
    options["ignore_name_scope"] = ignore_name_scope
    rest = [None if index in integers else tensor for index, tensor in enumerate(tensors)]
    reduced = reduce.grouped_allreduce(rest, average, op=op, name=name, **factors, **options)
    for index in integers:
        total = reduce.allreduce(tensors[index], op=Sum, name=name and f"{name}.{index}", **options)
        reduced[index] = _divided(total, process_set)
    return reduced


@with_errors_of_the_operation
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """See `tfddl.allgather`. The gradient is the average of the ranks' cotangents, not their sum."""
    scaled = _with_gradient_over_size(tensor, process_set)
    return gather.allgather(scaled, name, ignore_name_scope, process_set)


@with_errors_of_the_operation
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """See `tfddl.grouped_allgather`. The gradient is the average of the ranks' cotangents, not their sum."""
    check_list("grouped_allgather", tensors)
    scaled = [_with_gradient_over_size(tensor, process_set) for tensor in tensors]
    return gather.grouped_allgather(scaled, name, ignore_name_scope, process_set)


@with_errors_of_the_operation
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """See `tfddl.broadcast`. The gradient of the root is the average of the ranks' cotangents, not their sum."""
    scaled = _with_gradient_over_size(tensor, process_set)
    return send.broadcast(scaled, root_rank, name, ignore_name_scope, process_set)


@with_errors_of_the_operation
def broadcast_(
    variables_: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[tf.Tensor]:
    """See `tfddl.broadcast_`."""
    return variables.broadcast_(variables_, root_rank, name, process_set)


@with_errors_of_the_operation
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """See `tfddl.reducescatter`. The gradient is larger by a factor of the number of ranks."""
    return scatter.reducescatter(
        _with_gradient_times_size(tensor, process_set),
        compression,
        op,
        name,
        process_set,
        ignore_name_scope,
        prescale_factor,
        postscale_factor,
    )


@with_errors_of_the_operation
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """See `tfddl.grouped_reducescatter`. The gradient is larger by a factor of the number of ranks."""
    check_list("grouped_reducescatter", tensors)
    return scatter.grouped_reducescatter(
        [_with_gradient_times_size(tensor, process_set) for tensor in tensors],
        compression,
        op,
        process_set,
        prescale_factor,
        postscale_factor,
        ignore_name_scope,
        name,
    )


@with_errors_of_the_operation
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """See `tfddl.alltoall`."""
    return exchange.alltoall(tensor, splits, name, ignore_name_scope, process_set)


def _allreduce(tensor: Any, name: str | None = None, op: int = Sum, **options: Any) -> Any:
    """See `allreduce`. The default of `op` is Sum, as in the next three functions."""
    return allreduce(tensor, name=name, op=op, **options)


def _grouped_allreduce(tensors: Sequence[Any], name: str | None = None, op: int = Sum, **options: Any) -> Any:
    return grouped_allreduce(tensors, name=name, op=op, **options)


def _reducescatter(tensor: Any, name: str | None = None, op: int = Sum, **options: Any) -> Any:
    return reducescatter(tensor, name=name, op=op, **options)


def _grouped_reducescatter(
    tensors: Sequence[Any], name: str | None = None, op: int = Sum, **options: Any
) -> Any:
    return grouped_reducescatter(tensors, name=name, op=op, **options)


def _is_average(op: int | None, average: bool | None) -> bool:
    return op == Average if op is not None else average is None or bool(average)


def _check_slices(op: int | None, prescale_factor: float, postscale_factor: float) -> None:
    if op not in (None, Average, Sum):
        raise NotImplementedError(
            "tf.IndexedSlices are combined by op=hvd.Average and op=hvd.Sum: make a dense tensor of them by "
            f"tf.convert_to_tensor, or give sparse_as_dense=True. Received: op={op}"
        )
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError(
            "prescale_factor and postscale_factor are not for tf.IndexedSlices: multiply the values. "
            f"Received: prescale_factor={prescale_factor}, postscale_factor={postscale_factor}"
        )


def _divided(slices: tf.IndexedSlices, process_set: ProcessSet) -> tf.IndexedSlices:
    values = slices.values / tf.cast(len(members(process_set)), slices.values.dtype)
    return tf.IndexedSlices(values, slices.indices, slices.dense_shape)


def _with_gradient_over_size(tensor: Any, process_set: ProcessSet) -> Any:
    return _with_gradient_times(tensor, process_set, lambda size: 1.0 / size)


def _with_gradient_times_size(tensor: Any, process_set: ProcessSet) -> Any:
    return _with_gradient_times(tensor, process_set, float)


def _with_gradient_times(tensor: Any, process_set: ProcessSet, factor_of: Any) -> Any:
    """Returns a tensor of the same value whose gradient is multiplied by a factor, a function of the number of ranks."""
    if tensor is None or isinstance(tensor, tf.IndexedSlices) or not process_set.included():
        return tensor  # for the function of tfddl to refuse, or to leave alone
    tensor = tf.convert_to_tensor(tensor)
    if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
        return tensor
    factor = factor_of(len(members(process_set)))

    @tf.custom_gradient
    def scaled(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return tf.identity(x), lambda cotangent: cotangent * tf.cast(factor, cotangent.dtype)

    return scaled(tensor)
