"""Broadcast of variables with Horovod's arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tfddl.compat.horovod.exceptions import with_errors_of_the_operation
from tfddl.ops import variables
from tfddl.runtime.process_sets import ProcessSet, global_process_set
from tfddl.v1 import broadcast


@with_errors_of_the_operation
def broadcast_variables(
    variables_: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """See `tfddl.broadcast_variables`. `inplace` changes nothing."""
    return variables.broadcast_variables(variables_, root_rank, process_set)


def broadcast_global_variables(root_rank: int) -> Any:
    """See `tfddl.broadcast_global_variables`."""
    return broadcast.broadcast_global_variables(root_rank)


class BroadcastGlobalVariablesHook(broadcast.BroadcastGlobalVariablesHook):
    """See `tfddl.BroadcastGlobalVariablesHook`. `device` changes nothing."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__(root_rank)
