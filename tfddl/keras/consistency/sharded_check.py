"""Checks of a model whose optimizer's state is divided among the ranks."""

from typing import Any

from tfddl import _compat
from tfddl.keras.consistency import model_contents
from tfddl.ops.exchange import all_numbers
from tfddl.runtime.agreement import check_equal
from tfddl.runtime.process_sets import ProcessSet

_INSTEAD = {
    "BackupAndRestore": "hvd.callbacks.ShardedCheckpoint",
    "SwapEMAWeights": "the optimizer's ema_overwrite_frequency",
}


def check_callbacks(callbacks: list[Any], model: Any) -> None:
    """Refuses callbacks of Keras that would take the slices of one rank for the state.

    Raises:
        ValueError: There is one.
    """
    found = [each for each in callbacks if type(each).__name__ in _INSTEAD]
    if found and model is not None and model_contents.sharded_optimizers(model):
        kind = type(found[0]).__name__
        raise ValueError(
            f"{kind} knows the slices of one rank of a ShardedOptimizer: use {_INSTEAD[kind]} instead. "
            f"Received: callbacks={[type(each).__name__ for each in callbacks]}"
        )


def check_iterations(model: Any, name: str, process_set: ProcessSet) -> None:
    """Checks that all ranks have slices of one state. All ranks call it.

    Args:
        model: The compiled model.
        name: Names the collective.
        process_set: The ranks that train.

    Raises:
        ValueError: On every rank, if a file was loaded on some of them.
    """
    for optimizer in model_contents.sharded_optimizers(model):
        (steps,) = all_numbers(_compat.steps_taken(optimizer), name=name, process_set=process_set)
        check_equal(
            steps,
            "No broadcast can make the state of a ShardedOptimizer equal, of which each rank has a slice: call load_model "
            "on all ranks.",
        )
