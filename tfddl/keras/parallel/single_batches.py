"""`train_on_batch`: beside the step, the checks and the broadcast that `fit` has in callbacks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from tfddl import _compat
from tfddl.keras.consistency import model_contents
from tfddl.keras.consistency.divergence import DivergenceCheck
from tfddl.keras.parallel.order import compare_batch
from tfddl.ops.variables import broadcast_variables
from tfddl.runtime.process_sets import global_process_set


class SingleBatches:
    """The batches of `train_on_batch`, counted for each model."""

    def __init__(self) -> None:
        self._counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    @contextmanager
    def next(self, model: Any, batch: Any) -> Iterator[None]:
        """A context for one step: all ranks have the same batch, and after the first step of a model the same weights.

        Raises:
            ValueError: On every rank: the ranks have different batches; or weights that differ after the second step.
        """
        number = self._counts.get(model, 0)
        self._counts[model] = number + 1
        compare_batch(number, batch)
        was_built = model.built
        if number == 0 and was_built:
            _broadcast(model)
        yield
        if number == 0 and not was_built:
            _broadcast(model)
        if number == 1 and not _compat.trains_with_stock_step(model):
            check = DivergenceCheck(model, "DataParallel.divergence", global_process_set, refuses=True)
            check.differ(model.trainable_weights)


def _broadcast(model: Any) -> None:
    model_contents.build_optimizer(model)
    broadcast_variables(model_contents.all_variables(model), 0)
