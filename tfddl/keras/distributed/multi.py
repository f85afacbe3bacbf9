"""Keras' MultiOptimizer, which gives each variable to one of several optimizers."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tfddl.keras.distributed.adoption import Adopted, is_adopted, settings_of
from tfddl.keras.distributed.backward_passes import accumulate
from tfddl.keras.distributed.base_optimizer import applying


class DistributedMulti(Adopted):
    """A MultiOptimizer whose optimizers are distributed, also those that a function makes when it is built."""

    _inner_optimizers: list[Any]

    def build(self, variables: Any) -> None:
        """See `keras.optimizers.MultiOptimizer.build`."""
        plain: Any = super()
        choose = vars(self)["_optimizer_map"]
        # Before Keras builds them, which fixes whether they accumulate.
        vars(self)["_optimizer_map"] = lambda variable: self._distributed(choose(variable))
        try:
            plain.build(variables)
        finally:
            vars(self)["_optimizer_map"] = choose

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """See `keras.optimizers.MultiOptimizer.apply`."""
        plain: Any = super()
        settings = settings_of(self)
        with ExitStack() as stack:
            for inner in self._inner_optimizers if settings.done else ():
                stack.enter_context(applying(settings_of(inner), True))
            return plain.apply(list(grads), trainable_variables)

    def _distributed(self, optimizer: Any) -> Any:
        from tfddl.keras.optimizer import distribute  # which imports this module

        if not is_adopted(optimizer):
            settings = settings_of(self)
            accumulate(optimizer, settings.backward_passes_per_step)
            distribute(optimizer, settings.fresh(settings.local))
        return optimizer
