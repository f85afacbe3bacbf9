"""join: a rank has no more data, and the other ranks go on without it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import tensorflow as tf

from tfddl import _graphs
from tfddl.ops import native
from tfddl.ops.collective import check_callable
from tfddl.runtime.process_sets import ProcessSet, global_process_set, id_of, serial

AVERAGE_OVER = ("size", "active")
_needed: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""Objects that need all ranks of a process set, and its serial."""


def need_all(process_set: ProcessSet, owner: Any) -> None:
    """From now on, as long as `owner` exists, no rank of the set can join: a rank that has joined would lack its part."""
    _needed[owner] = serial(id_of(process_set, "join"))


@tf.autograph.experimental.do_not_convert
def join(*, average_over: str = "size", process_set: ProcessSet = global_process_set) -> Any:
    """Says that this rank's data has ended, and waits until the data of all ranks has ended.

    Meanwhile the collectives of other ranks run without this rank: a reduction covers the ranks that have not joined, a
    gather has their rows only, and an `alltoall` drops the rows for this rank. A broadcast from a rank that has joined is an
    error. Collectives that this rank has called before, in any thread, run first; new ones are refused while it waits. Once
    all ranks have joined, the join is over, and all ranks may go on, for example with the next epoch.

    In a `tf.function` it runs after all collectives that were called there before, also from inside a branch (`if`,
    `tf.cond`). Call it in the outermost function: TensorFlow traces a function inside of another one once, and the order
    holds for that trace alone. In a loop it does not hold back the collectives of the next round: join after it. A session
    of TF1 runs the join alone: call `session.run` for it after the collectives.

    Args:
        average_over: The divisor of averages while some ranks have joined, the same on all ranks: `"size"`, the number of
            all ranks, or `"active"`, the number of ranks that have not joined. Defaults to `"size"`, as if the ranks without
            data had zeros.
        process_set: The ranks that join. Collectives of other sets go on. Defaults to all ranks.

    Returns:
        The rank that joined last, the same on all ranks; if several joined at once, the highest. An int; in a graph a
        scalar of int32.

    Raises:
        ValueError: tfddl is not initialized, `average_over` is another value, XLA compiles the call, or the ranks share the
            state of a `tfddl.ShardedOptimizer`.
        tf.errors.FailedPreconditionError: On all ranks that have joined, when they disagree on `average_over`; their join is
            cancelled.
        tf.errors.InvalidArgumentError: Another thread of this rank waits in `join`.
        tf.errors.UnknownError: A rank left or failed.
    """
    check_callable("join")
    number = id_of(process_set, "join")
    if average_over not in AVERAGE_OVER:
        raise ValueError(
            f"average_over of join is one of {', '.join(map(repr, AVERAGE_OVER))}: choose one of them. "
            f"Received: average_over={average_over!r}"
        )
    if _graphs.in_xla_context():
        raise ValueError(
            "hvd.join() cannot run inside a function compiled by XLA: call it outside of jit_compile=True."
        )
    if _all_are_needed(serial(number)):
        raise ValueError(
            "hvd.join() lets the other ranks train on, and a ShardedOptimizer needs all ranks, as each updates a slice of "
            "the weights: use as many batches on each rank (hvd.data.steps_per_epoch), or DistributedOptimizer."
        )
    if tf.executing_eagerly():
        return int(native.join(average_over, number))
    # In a branch the join also waits for the collectives of the outer functions. A session has an order of its own.
    functions = [graph for graph in _graphs.being_built() if hasattr(graph, "outer_graph")]
    before = [op for graph in functions for op in graph.get_operations() if op.type.startswith("Tfddl")]
    with tf.control_dependencies(before):
        return native.join(average_over, number)


def _all_are_needed(number: int) -> bool:
    if number in _needed.values():
        gc.collect()  # a model that is no longer used refers to itself
    return number in _needed.values()


tf.no_gradient("TfddlJoin")
