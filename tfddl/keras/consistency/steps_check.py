"""Checks that all ranks take the same epochs and steps. A rank that runs out of batches would leave the others waiting."""

import os
from typing import Any

from tfddl import _compat
from tfddl.keras.consistency import weights_check
from tfddl.keras.distributed.status import passes_of
from tfddl.ops.exchange import all_numbers, check_same
from tfddl.runtime import library
from tfddl.runtime.agreement import check_equal
from tfddl.runtime.process_sets import ProcessSet, id_of

_VARIABLES = ("TFDDL_BUCKET_MB", weights_check.VARIABLE)
"""Ranks with different values of them would run different collectives."""


def check_plan(params: dict[str, Any], model: Any, name: str, process_set: ProcessSet) -> None:
    """Compares the numbers that Keras knows before training. All ranks call it.

    Args:
        params: The parameters that Keras gives to callbacks.
        model: The compiled model.
        name: Names the collective.
        process_set: The ranks that train.

    Raises:
        ValueError: On every rank, if the ranks will take different numbers of steps, or Keras tunes `steps_per_execution`.
    """
    if _compat.tunes_steps_per_execution(model) and process_set.size() != 1:
        raise ValueError(
            "Keras changes steps_per_execution on each rank at another step, so that ranks would wait for different "
            'collectives: pass a number to compile. Received: steps_per_execution="auto"'
        )
    plan = {
        "batches": params.get("steps"),
        "epochs": params.get("epochs"),
        "steps_per_execution": _compat.steps_per_execution(model),
        "gradient_accumulation_steps": passes_of(getattr(model, "optimizer", None)),
    } | {name: os.environ.get(name) for name in _VARIABLES}
    check_same(
        [f"{key}={value}" for key, value in plan.items()],
        "The ranks have different numbers of batches, epochs or steps: give all ranks the same number of batches, or "
        "pass steps_per_epoch to fit; and use the same epochs and initial_epoch, steps_per_execution, "
        "gradient_accumulation_steps and TFDDL_* variables.",
        name,
        process_set,
    )


def check_first_epoch(epoch: int, name: str, process_set: ProcessSet) -> None:
    """Compares the epoch that training begins with. All ranks call it.

    Args:
        epoch: This rank's, from 0.
        name: Names the collective.
        process_set: The ranks that train.

    Raises:
        ValueError: On every rank, if the epochs differ.
    """
    (epochs,) = all_numbers(epoch, name=name, process_set=process_set)
    check_equal(epochs, "The ranks begin with different epochs: pass the same initial_epoch to fit on all.")


def check_epoch(epoch: int, batches: int, name: str, process_set: ProcessSet) -> None:
    """Compares the number of batches of the epoch that ends. All ranks call it.

    If other ranks are in the middle of a step, they wait for gradients of this rank. Then the watchdog ends the job after
    ten seconds, and its message contains the note that this function leaves.

    Args:
        epoch: The epoch, from 0.
        batches: This rank's number of batches.
        name: Names the collective.
        process_set: The ranks that train.

    Raises:
        ValueError: On every rank, if all ranks have ended the epoch and their numbers differ.
    """
    note = (
        f"at the end of epoch {epoch + 1}, after {batches} batches; give each rank the same number, or pass "
        "steps_per_epoch"
    )
    library.note(id_of(process_set, name), name, note)
    (counts,) = all_numbers(batches, name=name, process_set=process_set)
    check_equal(
        counts,
        f"The ranks had different numbers of batches in epoch {epoch + 1}: give each the same number, or pass "
        "steps_per_epoch.",
    )
