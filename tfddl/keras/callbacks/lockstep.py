"""All ranks go through the same epochs and the same number of steps; else an error that names them.

A rank that runs out of batches would leave the others waiting for its gradients.
"""

from typing import Any

from tfddl import _compat
from tfddl.keras.exchange import all_rows, differing_lists
from tfddl.runtime import library


def check_plan(params: dict[str, Any], model: Any, name: str) -> None:
    """Compares what Keras knows before training.

    Args:
        params: The parameters that Keras gives to callbacks.
        model: The compiled model.
        name: Names the collective.

    Raises:
        ValueError: On every rank, if the ranks will take different numbers of steps.
    """
    plan = {
        "batches": params.get("steps"),
        "epochs": params.get("epochs"),
        "steps_per_execution": getattr(model, "steps_per_execution", 1),
        "gradient_accumulation_steps": _accumulation(getattr(model, "optimizer", None)),
    }
    different = differing_lists([str(value) for value in plan.values()], name)
    if different is None:
        return
    for what, values in zip(plan, zip(*different, strict=True), strict=True):
        if len(set(values)) > 1:
            counts = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
            raise ValueError(
                f"The ranks have different numbers of {what}: give each the same number"
                f"{', or pass steps_per_epoch' if what == 'batches' else ''}. Received: {counts}"
            )


def _accumulation(optimizer: Any) -> int:
    return getattr(_compat.innermost(optimizer), "gradient_accumulation_steps", None) or 1


def check_first_epoch(epoch: int, name: str) -> None:
    """Compares the epoch that training begins with.

    Args:
        epoch: This rank's.
        name: Names the collective.

    Raises:
        ValueError: On every rank, if they differ.
    """
    epochs = all_rows([epoch], name)[:, 0]
    if len(set(epochs)) > 1:
        received = ", ".join(f"rank {rank}: {int(first)}" for rank, first in enumerate(epochs))
        raise ValueError(
            f"The ranks begin with different epochs: pass the same initial_epoch on all. Received: {received}"
        )


def check_epoch(epoch: int, batches: int, name: str) -> None:
    """Compares the number of batches of the epoch that ends.

    Where ranks are in the middle of a step meanwhile, they wait for gradients of this one: the watchdog ends the
    job after ten seconds, and shows the note.

    Args:
        epoch: The epoch, from 0.
        batches: This rank's.
        name: Names the collective.

    Raises:
        ValueError: On every rank, if all have ended the epoch and their numbers differ.
    """
    note = (
        f"at the end of epoch {epoch + 1}, after {batches} batches; give each rank the same number, or pass "
        "steps_per_epoch"
    )
    library.native().tfddl_note(name.encode(), note.encode())
    counts = all_rows([batches], name)[:, 0]
    if len(set(counts)) > 1:
        received = ", ".join(f"rank {rank}: {int(count)}" for rank, count in enumerate(counts))
        raise ValueError(
            f"The ranks had different numbers of batches in epoch {epoch + 1}: give each the same number, or pass "
            f"steps_per_epoch. Received: {received}"
        )
