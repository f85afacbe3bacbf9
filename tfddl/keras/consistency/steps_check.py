"""All ranks go through the same epochs and the same number of steps; else an error that names them.

A rank that runs out of batches would leave the others waiting for its gradients.
"""

from typing import Any

from tfddl import _compat
from tfddl.keras.distributed.status import passes_of
from tfddl.keras.exchange import all_rows, differing_lists, quoted
from tfddl.runtime import library
from tfddl.runtime.process_sets import ProcessSet, global_process_set, id_of


def check_plan(
    params: dict[str, Any], model: Any, name: str, process_set: ProcessSet = global_process_set
) -> None:
    """Compares what Keras knows before training.

    Args:
        params: The parameters that Keras gives to callbacks.
        model: The compiled model.
        name: Names the collective.
        process_set: Whose ranks take part; "every rank" means those.

    Raises:
        ValueError: On every rank, if the ranks will take different numbers of steps.
    """
    plan = {
        "batches": params.get("steps"),
        "epochs": params.get("epochs"),
        "steps_per_execution": _compat.steps_per_execution(model),
        "gradient_accumulation_steps": passes_of(getattr(model, "optimizer", None)),
    }
    different = differing_lists([str(value) for value in plan.values()], name, process_set)
    if different is None:
        return
    for what, values in zip(plan, zip(*different.values(), strict=True), strict=True):
        if len(set(values)) > 1:
            raise ValueError(
                f"The ranks have different numbers of {what}: give each the same number"
                f"{', or pass steps_per_epoch' if what == 'batches' else ''}. Received: {quoted(values, process_set)}"
            )


def check_first_epoch(epoch: int, name: str, process_set: ProcessSet = global_process_set) -> None:
    """Compares the epoch that training begins with.

    Args:
        epoch: This rank's.
        name: Names the collective.
        process_set: Whose ranks take part; "every rank" means those.

    Raises:
        ValueError: On every rank, if they differ.
    """
    epochs = all_rows([epoch], name, process_set)[:, 0]
    if len(set(epochs)) > 1:
        received = quoted(map(int, epochs), process_set)
        raise ValueError(
            f"The ranks begin with different epochs: pass the same initial_epoch on all. Received: {received}"
        )


def check_epoch(epoch: int, batches: int, name: str, process_set: ProcessSet = global_process_set) -> None:
    """Compares the number of batches of the epoch that ends.

    Where ranks are in the middle of a step meanwhile, they wait for gradients of this one: the watchdog ends the
    job after ten seconds, and shows the note.

    Args:
        epoch: The epoch, from 0.
        batches: This rank's.
        name: Names the collective.
        process_set: Whose ranks take part; "every rank" means those.

    Raises:
        ValueError: On every rank, if all have ended the epoch and their numbers differ.
    """
    note = (
        f"at the end of epoch {epoch + 1}, after {batches} batches; give each rank the same number, or pass "
        "steps_per_epoch"
    )
    library.native().tfddl_note(id_of(process_set, name), name.encode(), note.encode())
    counts = all_rows([batches], name, process_set)[:, 0]
    if len(set(counts)) > 1:
        received = quoted(map(int, counts), process_set)
        raise ValueError(
            f"The ranks had different numbers of batches in epoch {epoch + 1}: give each the same number, or pass "
            f"steps_per_epoch. Received: {received}"
        )
