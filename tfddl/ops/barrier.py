"""barrier: a rank goes on once all ranks have called it."""

from __future__ import annotations

import tensorflow as tf

from tfddl.ops import native
from tfddl.ops.collective import check_callable, name_of
from tfddl.runtime.process_sets import ProcessSet, global_process_set, id_of


@tf.autograph.experimental.do_not_convert
def barrier(
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Operation | None:
    """Waits until all ranks have called it.

    In a `tf.function` the barrier keeps its order among stateful ops, which change variables, print or read data. It does
    not order collectives or arithmetic, which run as soon as their inputs exist.

    Args:
        name: See `allreduce`.
        ignore_name_scope: See `allreduce`.
        process_set: See `allreduce`.

    Returns:
        In a graph the operation. In eager mode None, once all ranks have called it.

    Raises:
        ValueError: tfddl is not initialized.
        tf.errors.FailedPreconditionError: On all ranks, when a rank calls another collective by this name.
    """
    check_callable("barrier")
    number = id_of(process_set, "barrier")
    return native.barrier(name_of("barrier", name, ignore_name_scope, number), number)
