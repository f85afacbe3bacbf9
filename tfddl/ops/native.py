"""The native ops as Python functions, for code that has checked its arguments and has a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from tfddl.ops.devices import device_for
from tfddl.runtime import library, xla


def allreduce(
    tensors: Sequence[tf.Tensor],
    op: int,
    name: str,
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    context: str = "",
    bucket: int = 0,
    buckets: int = 1,
    process_set: int = 0,
) -> list[tf.Tensor]:
    """Reduces tensors of one dtype as a group, or as one bucket of a gradient computation.

    Args:
        tensors: At least one.
        op: See `tfddl.allreduce`.
        name: Equal on all ranks; of a bucket, the name of the computation.
        prescale: Multiplies before the reduction.
        postscale: Multiplies after it.
        context: What else all ranks must agree on, in words; of a bucket, a description of all buckets.
        bucket: Number of this bucket, from 0.
        buckets: How many are agreed on by the same vote.
        process_set: Number of the process set.

    Returns:
        The reduced tensors.
    """
    return _reduction(
        library.ops().tfddl_allreduce,
        tensors,
        op,
        name,
        prescale,
        postscale,
        context,
        process_set,
        bucket=bucket,
        buckets=buckets,
    )


def allreduce_buckets(
    buckets: Sequence[Sequence[tf.Tensor]],
    op: int,
    name: str,
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    context: str = "",
    process_set: int = 0,
) -> list[list[tf.Tensor]]:
    """Reduces all buckets of a gradient computation by one op, in a function that XLA compiles.

    To the other ranks it is what an `allreduce` of each bucket is. There each would wait where it stands; the one op
    begins each bucket as soon as its gradients exist, and waits behind the last.

    Args:
        buckets: Tensors of one dtype each.
        op, name, prescale, postscale, context, process_set: See `allreduce`.

    Returns:
        The reduced tensors, bucket by bucket.
    """
    results = library.ops().tfddl_allreduce_buckets(
        x=[tensor for bucket in buckets for tensor in bucket],
        members=[len(bucket) for bucket in buckets],
        tensor_name=name,
        reduce_op=op,
        prescale=repr(float(prescale)),
        postscale=repr(float(postscale)),
        context=context,
        process_set=process_set,
    )
    _unchain(results[0])
    rest = iter(results)
    return [[next(rest) for _ in bucket] for bucket in buckets]


def reducescatter(
    tensors: Sequence[tf.Tensor],
    op: int,
    name: str,
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    context: str = "",
    process_set: int = 0,
) -> list[tf.Tensor]:
    """Reduces tensors of one dtype as a group and gives this rank its rows; the arguments are those of `allreduce`."""
    return _reduction(
        library.ops().tfddl_reducescatter, tensors, op, name, prescale, postscale, context, process_set
    )


def _reduction(
    native_op: Callable[..., list[tf.Tensor]],
    tensors: Sequence[tf.Tensor],
    op: int,
    name: str,
    prescale: float,
    postscale: float,
    context: str,
    process_set: int,
    **more: int,
) -> list[tf.Tensor]:
    with device_for(op, tensors[0].dtype.name, prescale, postscale):
        results = native_op(
            x=list(tensors),
            tensor_name=name,
            reduce_op=op,
            prescale=repr(float(prescale)),
            postscale=repr(float(postscale)),
            context=context,
            process_set=process_set,
            **more,
        )
    _unchain(results[0])
    return results


def allgather(tensor: tf.Tensor, name: str, process_set: int = 0) -> tf.Tensor:
    """See `tfddl.allgather`."""
    return grouped_allgather([tensor], name, process_set=process_set)[0]


def grouped_allgather(
    tensors: Sequence[tf.Tensor], name: str, context: str = "", process_set: int = 0
) -> list[tf.Tensor]:
    """Gathers tensors of one dtype as a group; `context` is what else all ranks must agree on, in words."""
    return gather(tensors, name, context, process_set).results


class Gathered(NamedTuple):
    """What the ranks that have not joined brought."""

    results: list[tf.Tensor]
    rows: tf.Tensor
    """int64, `[tensors, ranks]`: how many rows came from each rank."""
    divisor: tf.Tensor
    """A scalar of int64: what an average divides by."""


def gather(tensors: Sequence[tf.Tensor], name: str, context: str = "", process_set: int = 0) -> Gathered:
    """As `grouped_allgather`, with where the rows are from."""
    gathered = Gathered(
        *library.ops().tfddl_allgather(
            x=list(tensors), tensor_name=name, context=context, process_set=process_set
        )
    )
    _unchain(gathered.results[0])
    return gathered


def alltoall(
    tensor: tf.Tensor, splits: tf.Tensor | None, name: str, process_set: int = 0
) -> tuple[tf.Tensor, tf.Tensor]:
    """See `tfddl.alltoall`; without `splits` too, the second result says how many rows came from each rank."""
    even = splits is None
    sizes = tf.zeros([0], tf.int64) if even else splits
    result, received = library.ops().tfddl_alltoall(
        x=tensor, splits=sizes, tensor_name=name, even=even, process_set=process_set
    )
    _unchain(result)
    return result, received


def broadcast(tensor: tf.Tensor, root_rank: int, name: str, process_set: int = 0) -> tf.Tensor:
    """See `tfddl.broadcast`; `root_rank` is a rank of the job."""
    result: tf.Tensor = library.ops().tfddl_broadcast(
        x=tensor, tensor_name=name, root_rank=root_rank, process_set=process_set
    )
    _unchain(result)
    return result


def barrier(name: str, process_set: int = 0) -> tf.Operation | None:
    """See `tfddl.barrier`. It stays in the order of a function's stateful ops."""
    return library.ops().tfddl_barrier(tensor_name=name, process_set=process_set)


def join(average_over: str, process_set: int = 0) -> tf.Tensor:
    """See `tfddl.join`."""
    result: tf.Tensor = library.ops().tfddl_join(
        tensor_name="hvd.join()", average_over=average_over, process_set=process_set
    )
    if not tf.executing_eagerly():
        result.graph._tfddl_joins = True
    return result


def place(what: str, name: str | None = None, process_set: int = 0) -> tf.Tensor:
    """What `tfddl.rank`, `size`, `local_rank` or `local_size` returns, when the op runs; or "included"."""
    xla.require(f"{what}_op")
    result: tf.Tensor = library.ops().tfddl_place(what=what, name=name, process_set=process_set)
    _unchain(result)
    return result


def _unchain(result: tf.Tensor) -> None:
    """Lets the op that made `result` run as soon as its inputs exist.

    TensorFlow runs the stateful ops of a function one after the other. Ours are agreed on by name and need no order, and
    a bucket of gradients must not wait for the one before it to come back. Only what stands behind a join has to wait
    for that. For the same reason auto-clustering (`--tf_xla_auto_jit`) leaves them alone: in a cluster they would wait
    for the whole of it. It does not look at this in a function with `jit_compile=True`.
    """
    if tf.executing_eagerly():
        return
    result.op._set_attr("_XlaCompile", attr_value_pb2.AttrValue(b=False))
    if not hasattr(result.graph, "_tfddl_joins"):
        manager = getattr(result.graph, "experimental_acd_manager", None)
        if manager is not None:
            manager.run_independently(result.op)
