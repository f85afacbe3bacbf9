"""Weights that come apart in a `train_step` of the user's own, where one of several optimizers combines no gradients."""

from collections.abc import Sequence
from typing import Any

from tfddl import _compat
from tfddl.gradients.checksum import checksum, listed
from tfddl.keras.consistency import model_check
from tfddl.keras.distributed.status import is_distributed
from tfddl.keras.exchange import differing_lists
from tfddl.runtime.log import warn_once
from tfddl.runtime.process_sets import ProcessSet


class ApartWatch:
    """Looks whether weights that were equal on all ranks still are.

    A plain optimizer may be right beside a DistributedGradientTape, or for weights that are each rank's own, so that only
    what it has done to weights tells.

    Args:
        model: One with a `train_step` of its own, before its first step.
        name: Names the collective.
        process_set: Whose ranks train it.
    """

    def __init__(self, model: Any, name: str, process_set: ProcessSet) -> None:
        self._model, self._name, self._process_set = model, name, process_set
        self._before = {id(optimizer): steps for _, optimizer, steps in self._plain()}

    def look(self, weights: Sequence[Any]) -> bool:
        """Compares weights bit for bit; warns, on the first rank, if they differ. All ranks call it together.

        Args:
            weights: Those that are to be equal.

        Returns:
            Whether they differ.
        """
        checksums = [str(checksum(_compat.tf_variable(weight).numpy())) for weight in weights]
        different = differing_lists(checksums, self._name, self._process_set)
        if different is None:
            return False
        rows = list(zip(*different.values(), strict=False))
        apart = [
            _compat.path(weight) for weight, row in zip(weights, rows, strict=False) if len(set(row)) > 1
        ]
        warn_once(
            "Weights that were equal on all ranks differ after a step of the model's own train_step, where the gradients of "
            "some optimizer are not combined: distribute that one too (tfddl.DistributedOptimizer), or use a "
            "tfddl.DistributedGradientTape for it. Weights that are to be each rank's own go into "
            "BroadcastGlobalVariablesCallback(local_variables=...). "
            f"Received: optimizers that are not distributed and took steps: {self._moved()}; weights that differ: "
            f"{listed(apart)}",
            self._process_set,
        )
        return True

    def _plain(self) -> list[tuple[str, Any, int]]:
        """The optimizers that combine nothing by themselves: where the model has them, and their steps so far."""
        return [
            (place, optimizer, _compat.steps_taken(optimizer))
            for place, optimizer in model_check.optimizers_by_place(self._model)
            if not is_distributed(optimizer)
        ]

    def _moved(self) -> str:
        moved = [
            f"model.{place} ({type(_compat.innermost(optimizer)).__name__})"
            for place, optimizer, steps in self._plain()
            if steps > self._before.get(id(optimizer), 0)
        ]
        return ", ".join(moved) or "none that the model holds"
