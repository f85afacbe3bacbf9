"""`distribute`: gives an optimizer of Keras, with all optimizers inside it, the class that combines gradients."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from tfddl import _compat
from tfddl.keras.distributed import apply_call, patches
from tfddl.keras.distributed.backward_passes import accumulate
from tfddl.keras.distributed.base_optimizer import Distributed
from tfddl.keras.distributed.dynamic_subclass import DynamicSubclass, base_class, is_subclassed, subclass
from tfddl.keras.distributed.loss_scale_optimizer import DistributedLossScale
from tfddl.keras.distributed.settings import Settings, set_settings, settings_of
from tfddl.keras.distributed.sharded_optimizer import Sharded
from tfddl.keras.keras2 import aggregation


def distribute(optimizer: Any, settings: Settings) -> Any:
    """Gives `optimizer` and the optimizers inside it a subclass, unless they have one already.

    Args:
        optimizer: An optimizer of the Keras in use.
        settings: How to combine. Each member of a MultiOptimizer gets settings of its own, with the same `local`.

    Returns:
        `optimizer` itself.
    """
    if _compat.is_keras_2():
        return aggregation.distribute(optimizer, settings)
    patches.watch_loss_scale_optimizers(_subclass_loss_scale, _refuse_several)
    if _compat.is_loss_scale_optimizer(optimizer):
        distribute(optimizer.inner_optimizer, settings)
        _subclass_loss_scale(optimizer)
    elif not is_subclassed(optimizer):
        set_settings(optimizer, settings)
        if _compat.has_inner_optimizers(optimizer):
            for inner in optimizer._inner_optimizers:
                distribute(inner, settings.fresh(settings.local))
            subclass(optimizer, DistributedMulti, __reduce__=_reduce)
        else:
            subclass(optimizer, Sharded if settings.sharded else Distributed, __reduce__=_reduce)
    return optimizer


def restore(function: Callable[..., Any], arguments: tuple[Any, ...], settings: Settings) -> Any:
    """Makes the copy of a pickled or copied optimizer."""
    return distribute(function(*arguments), settings)


class DistributedMulti(DynamicSubclass):
    """In front of a Keras 3 MultiOptimizer: distributes its members, also those that a function makes at build time."""

    _inner_optimizers: list[Any]

    def build(self, variables: Any) -> None:
        """See `keras.optimizers.MultiOptimizer.build`."""
        plain: Any = super()
        choose = vars(self)["_optimizer_map"]
        # Before Keras builds the members: an optimizer makes its accumulators when it is built.
        vars(self)["_optimizer_map"] = lambda variable: self._distributed(choose(variable))
        try:
            plain.build(variables)
        finally:
            vars(self)["_optimizer_map"] = choose

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """See `keras.optimizers.MultiOptimizer.apply`."""
        plain: Any = super()
        call = apply_call.current(self)  # of a LossScaleOptimizer around it
        with ExitStack() as stack:
            if call is not None and call.reduced:
                for inner in self._inner_optimizers:
                    stack.enter_context(apply_call.under_way(inner, call))
            return plain.apply(list(grads), trainable_variables)

    def _distributed(self, optimizer: Any) -> Any:
        if not is_subclassed(optimizer):
            settings = settings_of(self)
            accumulate(optimizer, settings.backward_passes_per_step)
            distribute(optimizer, settings.fresh(settings.local))
        return optimizer


def _subclass_loss_scale(optimizer: Any) -> bool:
    """Gives a LossScaleOptimizer around a distributed optimizer a subclass; returns whether this call did it."""
    if is_subclassed(optimizer) or not is_subclassed(optimizer.inner_optimizer):
        return False
    subclass(optimizer, DistributedLossScale, __reduce__=_reduce)
    return True


def _refuse_several(optimizer: Any) -> None:
    """Refuses a LossScaleOptimizer around a plain MultiOptimizer of distributed optimizers.

    Each rank would decide alone whether to apply them.
    """
    inner = optimizer.inner_optimizer
    if not _compat.has_inner_optimizers(inner) or is_subclassed(inner):
        return
    if any(map(is_subclassed, inner._inner_optimizers)):
        raise ValueError(
            "A LossScaleOptimizer around a MultiOptimizer has to know that its optimizers are distributed: give the "
            f"MultiOptimizer to tfddl.DistributedOptimizer. Received: inner_optimizer={inner!r}"
        )


def _reduce(optimizer: Any) -> Any:
    """`__reduce__` of a subclassed optimizer: pickles and copies as Keras does, then distributes the copy."""
    base: Any = base_class(optimizer)
    function, arguments = base.__reduce__(optimizer)[:2]
    if getattr(function, "__self__", None) is type(optimizer):
        # A class method of the subclass, which pickle cannot find by name: take the user's class.
        function = getattr(base, function.__name__)
    return restore, (function, arguments, settings_of(optimizer).fresh())
