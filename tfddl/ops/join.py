"""join: this rank has no more data, and the others go on without it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.ops import native
from tfddl.ops.collective import check_callable
from tfddl.runtime.process_sets import ProcessSet, global_process_set, id_of

AVERAGE_OVER = ("size", "active")


@tf.autograph.experimental.do_not_convert
def join(*, average_over: str = "size", process_set: ProcessSet = global_process_set) -> Any:
    """Says that this rank's data has ended, and waits until that of all ranks has.

    Until then the other ranks' collectives run without this one: a reduction over the ranks that have not joined,
    a gather of their rows, an `alltoall` that drops the rows for this one. A broadcast from a rank that has joined
    is an error. What this rank has called before, in other threads too, runs first; what it calls while it waits is
    refused. When all have joined, nobody is joined any more, and all may go on, with the next epoch for example.

    In a `tf.function` or a graph of TF1 it runs after all collectives that were called there before.

    Args:
        average_over: What averages divide by as long as some ranks have joined: `"size"`, the number of all ranks, or
            `"active"`, the number of those that have not joined. The same on all ranks. Defaults to `"size"`, as if
            the ranks without data had zeros.
        process_set: The ranks whose data ends together; the others' collectives in other sets go on. Defaults to all.

    Returns:
        The rank that joined last (of several that joined at once the highest), the same on all ranks: an int; in a graph
        a scalar of int32.

    Raises:
        ValueError: tfddl is not initialized, `average_over` is something else, or XLA compiles the call.
        tf.errors.FailedPreconditionError: On all ranks that have joined, when they disagree on `average_over`. They have
            not joined then.
        tf.errors.InvalidArgumentError: Another thread of this rank waits in it.
        tf.errors.UnknownError: A rank left or failed.
    """
    check_callable("join")
    number = id_of(process_set, "join")
    if average_over not in AVERAGE_OVER:
        raise ValueError(
            f"average_over of join is one of {', '.join(map(repr, AVERAGE_OVER))}. Received: average_over={average_over!r}"
        )
    if _compat.in_xla_context():
        raise ValueError(
            "hvd.join() cannot run inside a function compiled by XLA: call it outside of jit_compile=True."
        )
    if tf.executing_eagerly():
        return int(native.join(average_over, number))
    before = [op for op in tf.compat.v1.get_default_graph().get_operations() if op.type.startswith("Tfddl")]
    with tf.control_dependencies(before):
        return native.join(average_over, number)


tf.no_gradient("TfddlJoin")
