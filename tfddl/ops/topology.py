"""rank_op, size_op and others: ranks and sizes that a graph computes when it runs."""

from __future__ import annotations

import tensorflow as tf

from tfddl.ops import native
from tfddl.runtime import rank_queries
from tfddl.runtime.process_sets import ProcessSet, global_process_set, id_of


def rank_op(name: str | None = None, process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """See `rank`.

    Args:
        name: The name of the operation in the graph.
        process_set: The ranks among which this process is counted.

    Returns:
        A scalar of int32.

    Raises:
        tf.errors.FailedPreconditionError: When it runs and tfddl is not initialized.
        tf.errors.InvalidArgumentError: When it runs on a rank that is not a member.
    """
    rank_queries.note_op("rank", "hvd.rank_op()")
    return native.topology("rank", name, _number(process_set))


def size_op(process_set_id: int | ProcessSet = 0, name: str | None = None) -> tf.Tensor:
    """The number of members of a process set, when it runs.

    Args:
        process_set_id: A `ProcessSet`, or its number. Defaults to all ranks.
        name: The name of the operation in the graph.

    Returns:
        A scalar of int32.

    Raises:
        ValueError: XLA traces the call, and the XLA kernels are missing.
        tf.errors.FailedPreconditionError: When it runs and tfddl is not initialized.
        tf.errors.InvalidArgumentError: When it runs and there is no such set.
    """
    rank_queries.note_op("size", "hvd.size_op()")
    return native.topology("size", name, _number(process_set_id))


def process_set_included_op(process_set_id: int | ProcessSet = 0, name: str | None = None) -> tf.Tensor:
    """Whether this rank is a member of a process set, when it runs.

    Args:
        process_set_id: A `ProcessSet`, or its number. Defaults to all ranks.
        name: The name of the operation in the graph.

    Returns:
        A scalar of int32: 1 or 0; -1 if tfddl is not initialized, -3 if there is no such set.
    """
    return native.topology("included", name, _number(process_set_id))


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """See `local_rank`. Args, returns and raises are those of `rank_op`."""
    rank_queries.note_op("rank", "hvd.local_rank_op()")
    return native.topology("local_rank", name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """See `local_size`. Args, returns and raises are those of `rank_op`."""
    rank_queries.note_op("size", "hvd.local_size_op()")
    return native.topology("local_size", name)


def _number(process_set: int | ProcessSet) -> int:
    if isinstance(process_set, int):
        return process_set
    return id_of(process_set, "this")


tf.no_gradient("TfddlRankQuery")
