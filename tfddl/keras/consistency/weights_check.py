"""Compares the weights of the ranks every few steps of `fit`, where `TFDDL_CHECK` asks for it."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from tfddl import _compat
from tfddl.gradients.checksum import checksum
from tfddl.ops.exchange import differing_lists
from tfddl.runtime.agreement import by_rank
from tfddl.runtime.process_sets import ProcessSet

VARIABLE = "TFDDL_CHECK"


def differing_weights(
    weights: Sequence[Any], name: str, process_set: ProcessSet
) -> list[tuple[Any, dict[int, str]]]:
    """Compares weights bit for bit over the ranks. All ranks call it.

    Args:
        weights: Variables of Keras or TensorFlow.
        name: Names the collectives.
        process_set: The ranks that take part.

    Returns:
        The weights that differ, each with its checksum on every rank, by rank in the job.
    """
    sums = [f"{checksum(_compat.tf_variable(weight).numpy()):08x}" for weight in weights]
    different = differing_lists(sums, name, process_set)
    if different is None:
        return []
    by_weight = zip(weights, zip(*different.values(), strict=False), strict=False)
    return [
        (weight, dict(zip(different, row, strict=True))) for weight, row in by_weight if len(set(row)) > 1
    ]


class WeightsCheck:
    """Compares weights bit for bit. All ranks do so after the same steps.

    Args:
        every: The number of steps from one comparison to the next.
        name: Names the collective.
        process_set: The ranks that train the model.
    """

    def __init__(self, every: int, name: str, process_set: ProcessSet) -> None:
        self._every, self._name, self._process_set = every, name, process_set
        self._steps = 0  # of this training
        self._equal_at = 0
        self._last_batches = 0  # of this epoch

    def begin_epoch(self) -> None:
        """Called at the begin of an epoch, when Keras counts batches anew."""
        self._last_batches = 0

    def after_batch(self, batches: int, weights: Callable[[], Sequence[Any]]) -> None:
        """Counts steps and compares the weights when it is time.

        Args:
            batches: The batches of this epoch so far. With `steps_per_execution` several are new.
            weights: Returns the weights that should be equal on all ranks.

        Raises:
            ValueError: On every rank, if the weights differ.
        """
        self._steps += batches - self._last_batches
        self._last_batches = batches
        if self._steps - self._equal_at >= self._every:
            self._compare(weights())
            self._equal_at = self._steps

    def _compare(self, weights: Sequence[Any]) -> None:
        wrong = differing_weights(weights, self._name, self._process_set)
        if not wrong:
            return
        weight, checksums = wrong[0]
        raise ValueError(
            f"Weights that should be equal on all ranks differ ({VARIABLE}={self._every}). They were equal after step "
            f"{self._equal_at} of this training and differ after step {self._steps}; a smaller {VARIABLE} tells the step. "
            "Look for weights that change outside of the distributed optimizer or tape, for an operation that is not "
            "deterministic, and for ranks on different processors or GPUs. List weights that are meant to differ in "
            f"BroadcastGlobalVariablesCallback(local_variables=...). Received: {len(wrong)} of {len(weights)} weights "
            f"differ; the first is {_compat.path(weight)}, with checksums {by_rank(checksums)}"
        )


def from_environment(name: str, process_set: ProcessSet) -> WeightsCheck | None:
    """The check that `TFDDL_CHECK` asks for; None if it is not set, or 0.

    Args:
        name: Names the collective.
        process_set: The ranks that train the model.

    Raises:
        ValueError: It is no whole number of steps.
    """
    text = os.environ.get(VARIABLE, "") or "0"
    if not text.isdecimal():
        raise ValueError(
            f"{VARIABLE} must be a number of steps, or 0 for no check: set {VARIABLE}=100. Received: {text!r}"
        )
    every = int(text)
    return WeightsCheck(every, name, process_set) if every and process_set.size() != 1 else None
