"""barrier: nobody goes on before all have come."""

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

    In a `tf.function` it runs behind what changes variables, prints or reads data before it, and ahead of what does so
    after it. Collectives and plain arithmetic keep the order of their data only, whatever barrier stands between them.

    Args:
        name: See `allreduce`.
        ignore_name_scope: See `allreduce`.
        process_set: See `allreduce`.

    Returns:
        In a graph the operation; eagerly None, when all have come.

    Raises:
        ValueError: tfddl is not initialized.
        tf.errors.FailedPreconditionError: On all ranks, when one of them calls something else by this name.
    """
    check_callable("barrier")
    number = id_of(process_set, "barrier")
    return native.barrier(name_of("barrier", name, ignore_name_scope, number), number)
