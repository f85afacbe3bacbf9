"""The native ops as Python functions, for code that has checked its arguments and has a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from tfddl import _graphs
from tfddl.ops import names
from tfddl.ops.devices import device_for
from tfddl.runtime import library, xla

# Two calls of one function submit the same names, so they must not run at the same time.
_graphs.chain_calls(
    lambda op_type: op_type.startswith("Tfddl") and op_type != "TfddlRankQuery",
    needs_kernels=lambda op_type: op_type.startswith("Tfddl"),
    for_xla=lambda: xla.require_kernels("function with collectives or rank_op"),
)


def allreduce(
    tensors: Sequence[tf.Tensor],
    op: int,
    name: str,
    *,
    bucket: int = 0,
    buckets: int = 1,
    **options: Any,
) -> list[tf.Tensor]:
    """Reduces tensors of one dtype as a group, or as one bucket of a gradient computation.

    Args:
        tensors: At least one.
        op: See `tfddl.allreduce`.
        name: The name on which ranks agree; of a bucket, the name of the computation.
        bucket: The index of this bucket, from 0.
        buckets: How many buckets are agreed on by the same vote.
        **options: See `_attributes`; `context` of a bucket describes all buckets.

    Returns:
        The reduced tensors.
    """
    native_op = library.ops().tfddl_allreduce
    return _reduction(native_op, tensors, op, name, options, bucket=bucket, buckets=buckets)


def allreduce_buckets(
    buckets: Sequence[Sequence[tf.Tensor]], op: int, name: str, **options: Any
) -> list[list[tf.Tensor]]:
    """Reduces all buckets of a gradient computation by one op, in a function that XLA compiles.

    Peers see an `allreduce` of each bucket. In XLA an `allreduce` would block where it stands; this op starts each
    bucket as soon as its gradients exist, and waits behind the last start.

    Args:
        buckets: Tensors of one dtype each.
        op: See `tfddl.allreduce`.
        name: The name on which ranks agree.
        **options: See `_attributes`.

    Returns:
        The reduced tensors, bucket by bucket.
    """
    results = library.ops().tfddl_allreduce_buckets(
        x=[tensor for bucket in buckets for tensor in bucket],
        members=[len(bucket) for bucket in buckets],
        **_attributes(op, name, **options),
    )
    _finish(results[0], name, options.get("process_set", 0))
    rest = iter(results)
    return [[next(rest) for _ in bucket] for bucket in buckets]


def reducescatter(tensors: Sequence[tf.Tensor], op: int, name: str, **options: Any) -> list[tf.Tensor]:
    """Reduces tensors of one dtype as a group and gives this rank its rows; the arguments are those of `allreduce`."""
    return _reduction(library.ops().tfddl_reducescatter, tensors, op, name, options)


def _attributes(
    op: int,
    name: str,
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    context: str = "",
    process_set: int = 0,
) -> dict[str, Any]:
    """The attributes that the ops of all reductions have.

    Args:
        op: See `tfddl.allreduce`.
        name: The name on which ranks agree.
        prescale: Multiplies before the reduction.
        postscale: Multiplies after it.
        context: Further fields of the signature, on which all ranks must agree: "name=value", separated by "|" (see
            custom_ops/base/signature.h).
        process_set: The number of the process set.
    """
    return {
        "tensor_name": name,
        "reduce_op": op,
        "prescale": repr(float(prescale)),
        "postscale": repr(float(postscale)),
        "context": context,
        "process_set": process_set,
    }


def _reduction(
    native_op: Callable[..., list[tf.Tensor]],
    tensors: Sequence[tf.Tensor],
    op: int,
    name: str,
    options: dict[str, Any],
    **bucket: int,
) -> list[tf.Tensor]:
    factors = options.get("prescale", 1.0), options.get("postscale", 1.0)
    with device_for(op, tensors[0].dtype.name, *factors):
        results = native_op(x=list(tensors), **_attributes(op, name, **options), **bucket)
    _finish(results[0], name, options.get("process_set", 0))
    return results


def allgather(tensor: tf.Tensor, name: str, process_set: int = 0) -> tf.Tensor:
    """See `tfddl.allgather`."""
    return grouped_allgather([tensor], name, process_set=process_set)[0]


def grouped_allgather(
    tensors: Sequence[tf.Tensor], name: str, context: str = "", process_set: int = 0
) -> list[tf.Tensor]:
    """Gathers tensors of one dtype as a group; see `_attributes` for `context`."""
    return gather(tensors, name, context, process_set).results


class Gathered(NamedTuple):
    """The rows of the ranks that have not joined."""

    results: list[tf.Tensor]
    rows: tf.Tensor
    """int64, `[tensors, ranks]`: how many rows came from each rank."""
    divisor: tf.Tensor
    """A scalar of int64: the number by which an average divides."""


def gather(tensors: Sequence[tf.Tensor], name: str, context: str = "", process_set: int = 0) -> Gathered:
    """Like `grouped_allgather`, and says how many rows came from each rank."""
    gathered = Gathered(
        *library.ops().tfddl_allgather(
            x=list(tensors), tensor_name=name, context=context, process_set=process_set
        )
    )
    _finish(gathered.results[0], name, process_set)
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
    if _graphs.in_xla_context():  # each rank gets as many rows as it sends
        result.set_shape(tensor.shape)
    _finish(result, name, process_set)
    return result, received


def broadcast(tensor: tf.Tensor, root_rank: int, name: str, process_set: int = 0) -> tf.Tensor:
    """See `tfddl.broadcast`; `root_rank` is a rank of the job."""
    result: tf.Tensor = library.ops().tfddl_broadcast(
        x=tensor, tensor_name=name, root_rank=root_rank, process_set=process_set
    )
    _finish(result, name, process_set)
    return result


def barrier(name: str, process_set: int = 0) -> tf.Operation | None:
    """See `tfddl.barrier`. It stays in the order of a function's stateful ops."""
    return library.ops().tfddl_barrier(tensor_name=name, process_set=process_set)


def join(average_over: str, process_set: int = 0) -> tf.Tensor:
    """See `tfddl.join`."""
    result: tf.Tensor = library.ops().tfddl_join(
        tensor_name="hvd.join()", average_over=average_over, process_set=process_set
    )
    for graph in _graphs.being_built():
        graph._tfddl_joins = True
    return result


def topology(quantity: str, name: str | None = None, process_set: int = 0) -> tf.Tensor:
    """A number of this process when the op runs: "rank", "size", "local_rank", "local_size" or "included"."""
    xla.require(f"{quantity}_op")
    result: tf.Tensor = library.ops().tfddl_rank_query(query=quantity, name=name, process_set=process_set)
    if not tf.executing_eagerly():
        _unchain(result)
    return result


def _finish(result: tf.Tensor, name: str, process_set: int) -> None:
    """Ends a call whose first result is `result`."""
    if tf.executing_eagerly():
        names.count_call(result, name, process_set)
    else:
        _unchain(result)


def _unchain(result: tf.Tensor) -> None:
    """Lets the op that made `result` run as soon as its inputs exist.

    TensorFlow runs the stateful ops of a function one after the other. The collectives of one function need no order,
    because ranks agree on them by name, and a bucket of gradients must not wait for the end of the bucket before it. Only
    the collectives behind a join wait for the join. Auto-clustering (`--tf_xla_auto_jit`) leaves the op alone as well: in a
    cluster it would wait for all inputs of the cluster. A function with `jit_compile=True` ignores this attribute.
    """
    result.op._set_attr("_XlaCompile", attr_value_pb2.AttrValue(b=False))
    graph: Any = result.graph
    _graphs.mark_compiled(graph)
    manager = getattr(graph, "experimental_acd_manager", None)
    if manager is None:
        _graphs.run_before_end(result.op)
        _graphs.run_iterations_in_turn(result.op)
    elif not hasattr(graph, "_tfddl_joins"):
        manager.run_independently(result.op)
