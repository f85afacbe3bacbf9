"""A call on one rank, for which the other ranks wait."""

from collections.abc import Callable
from typing import Any

from tfddl.ops.objects import allgather_object
from tfddl.runtime.process_sets import ProcessSet, global_process_set, members


def first(
    mine: bool, call: Callable[[], Any], name: str, process_set: ProcessSet = global_process_set
) -> Any:
    """Calls on some ranks, while the others wait. An error of one is an error of all. All ranks call it.

    Args:
        mine: Whether this rank calls.
        call: The call, such as one that writes a file.
        name: Names the collective.
        process_set: The ranks that take part.

    Returns:
        The result of the call; None on the other ranks.

    Raises:
        RuntimeError: The call has failed on another rank.
    """
    error, result = None, None
    if mine:
        try:
            result = call()
        except Exception as raised:
            error = raised
    report = None if error is None else f"{type(error).__name__}: {error}"
    reports = allgather_object(report, name=name, process_set=process_set)
    if error is not None:
        raise error
    failed = [(rank, said) for rank, said in zip(members(process_set), reports, strict=True) if said]
    if failed:
        raise RuntimeError(
            f"This rank waits for rank {failed[0][0]}, which failed. See its error: {failed[0][1]}"
        )
    return result
