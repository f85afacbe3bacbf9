"""Finds weights that diverge in a `train_step` of the user's own, if an optimizer there combines no gradients."""

from collections.abc import Sequence
from typing import Any

from tfddl import _compat
from tfddl.keras.consistency import model_contents
from tfddl.keras.consistency.weights_check import differing_weights
from tfddl.keras.distributed.status import is_distributed
from tfddl.runtime.agreement import first_few
from tfddl.runtime.log import warn_once
from tfddl.runtime.process_sets import ProcessSet


class DivergenceCheck:
    """Compares weights that were equal on all ranks when training began.

    A plain optimizer is not wrong by itself: a DistributedGradientTape may combine its gradients, or its weights may be
    meant to differ. So the check looks at the weights.

    Args:
        model: A model with a `train_step` of its own, before the first step.
        name: Names the collective.
        process_set: The ranks that train the model.
        refuses: Whether weights that differ are an error, as under DataParallel: one process would have equal ones.
    """

    def __init__(self, model: Any, name: str, process_set: ProcessSet, refuses: bool = False) -> None:
        self._model, self._name, self._process_set, self._refuses = model, name, process_set, refuses
        self._steps_before = {id(optimizer): steps for _, optimizer, steps in self._plain_optimizers()}

    def differ(self, weights: Sequence[Any]) -> bool:
        """Compares weights bit for bit, and warns on the first rank if they differ. All ranks call it.

        Args:
            weights: The weights that should be equal.

        Returns:
            Whether they differ.

        Raises:
            ValueError: On every rank, if they differ and the check refuses that.
        """
        paths = [
            _compat.path(weight) for weight, _ in differing_weights(weights, self._name, self._process_set)
        ]
        if not paths:
            return False
        if self._refuses:
            raise ValueError(
                "DataParallel: after a step of the model's own train_step the processes have different weights, since each "
                "has changed them by its own part of the batch. Let optimizers of Keras change the weights, and make each "
                "optimizer an attribute of the model: self.g_optimizer = keras.optimizers.Adam(). Here some optimizer is "
                "held by another object, or the step assigns values that it computes from the batch: average these "
                "over the processes first, value = hvd.allreduce(value). "
                f"Received: weights that differ: {first_few(paths)}"
            )
        warn_once(
            "Weights that were equal on all ranks differ after a step of the model's own train_step, where the gradients of "
            "some optimizer are not combined: distribute that optimizer too (tfddl.DistributedOptimizer), or use a "
            "tfddl.DistributedGradientTape for it. List weights that are meant to differ in "
            "BroadcastGlobalVariablesCallback(local_variables=...). "
            f"Received: optimizers that are not distributed and took steps: {self._moved()}; weights that differ: "
            f"{first_few(paths)}",
            self._process_set,
        )
        return True

    def _plain_optimizers(self) -> list[tuple[str, Any, int]]:
        """The optimizers that are not distributed: attribute of the model, optimizer, and its steps so far."""
        return [
            (name, optimizer, _compat.steps_taken(optimizer))
            for name, optimizer in model_contents.named_optimizers(self._model)
            if not is_distributed(optimizer)
        ]

    def _moved(self) -> str:
        moved = [
            f"model.{name} ({type(_compat.innermost(optimizer)).__name__})"
            for name, optimizer, steps in self._plain_optimizers()
            if steps > self._steps_before.get(id(optimizer), 0)
        ]
        return ", ".join(moved) or "none that the model holds"
