"""The classes that are put in front of optimizers of Keras 2 and of TensorFlow Addons.

Both kinds, `optimizers.Optimizer` and `optimizers.legacy.Optimizer`, have a hook that combines gradients. The hook runs
before clipping. A LossScaleOptimizer calls the hook before it decides to skip a step, so all ranks decide the same.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.gradients import reduced_marks
from tfddl.keras.distributed import apply_call, patches
from tfddl.keras.distributed.apply_call import ApplyCall
from tfddl.keras.distributed.dynamic_subclass import (
    DynamicSubclass,
    base_class,
    has_own,
    is_subclassed,
    subclass,
)
from tfddl.keras.distributed.settings import SETTINGS, Settings, set_settings, settings_of
from tfddl.keras.keras2.accumulation import Accumulation
from tfddl.keras.keras2.addons import refuse_inside
from tfddl.keras.keras2.finite import finite_everywhere

Pairs = Sequence[tuple[Any, Any]]
_ACCUMULATION = "_tfddl_accumulation"


def distribute(optimizer: Any, settings: Settings) -> Any:
    """Gives `optimizer`, or the one inside a LossScaleOptimizer, a subclass, unless it has one already."""
    if _compat.is_loss_scale_optimizer(optimizer):
        distribute(optimizer.inner_optimizer, settings)
    elif not is_subclassed(optimizer):
        patches.watch_loss_scale_optimizers_2(_loss_scaled)
        set_settings(optimizer, settings)
        vars(optimizer)[_ACCUMULATION] = Accumulation(settings)
        subclass(optimizer, _class_for(optimizer))
    return optimizer


def passes_done(optimizer: Any) -> int:
    """How many calls of `apply_gradients` a distributed optimizer has added up since its last update."""
    accumulation: Accumulation = vars(optimizer)[_ACCUMULATION]
    return accumulation.passes_done()


def _class_for(optimizer: Any) -> type[DynamicSubclass]:
    if _compat.is_addons_multi_optimizer(optimizer):
        return DistributedAddonsMulti
    return DistributedLegacy if _compat.is_legacy_optimizer(optimizer) else DistributedNew


@contextmanager
def _loss_scaled(optimizer: Any, grads_and_vars: Pairs) -> Iterator[None]:
    """Around `apply_gradients` of a LossScaleOptimizer, which drops the pairs without a gradient."""
    inner = _compat.innermost(optimizer)
    if not is_subclassed(inner):
        yield
        return
    with apply_call.under_way(inner, apply_call.new(settings_of(inner), *_unzip(grads_and_vars))):
        yield


class _Distributed(DynamicSubclass):
    """The base of the classes for both kinds of optimizers of Keras 2: new and legacy."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copies as Keras does, then distributes the copy. Groups and local variables have to be given again."""
        own = (SETTINGS, _ACCUMULATION)
        copied: Any = object.__new__(base_class(self))
        memo[id(self)] = copied
        state = {name: value for name, value in vars(self).items() if name not in own}
        vars(copied).update(copy.deepcopy(state, memo))
        return distribute(copied, settings_of(self).fresh())

    def _apply(self, plain: Callable[[Pairs], Any], grads_and_vars: Pairs, wanted: bool) -> Any:
        """Runs Keras' `apply_gradients`, which calls the hook if `wanted` is True."""
        optimizer: Any = self
        settings = settings_of(self)
        grads, variables = _unzip(grads_and_vars)
        pairs = [(grad, variable) for grad, variable in grads_and_vars if grad is not None]
        apply_call.check_global_norm(self, settings, *_unzip(pairs))
        call = apply_call.current(self)
        if call is None:  # else a LossScaleOptimizer has made it
            call = apply_call.new(settings, grads, variables)
        reduced = reduced_marks.all_reduced(grads)
        if settings.backward_passes_per_step > 1 and pairs:
            accumulation: Accumulation = vars(self)[_ACCUMULATION]
            with apply_call.under_way(self, dataclasses.replace(call, reduced=True)):
                accumulation.apply(optimizer, plain, pairs, list if reduced else call.reduce)
            # A LossScaleOptimizer wants this result in its branch.
            return tf.no_op() if _compat.is_legacy_optimizer(optimizer) else optimizer.iterations
        call = dataclasses.replace(call, reduced=reduced or not wanted)
        with apply_call.under_way(self, call):
            if has_own(self, "apply_gradients"):  # it may normalize gradients, and need not call the hook
                grads_and_vars, call.reduced = self._combined(grads_and_vars), True
            return plain(grads_and_vars)

    def _combined(self, grads_and_vars: Pairs) -> Pairs:
        """The hook's result."""
        settings = settings_of(self)
        pairs = list(grads_and_vars)
        grads, variables = _unzip(pairs)
        call = apply_call.current(self) or apply_call.new(settings, grads, variables)
        if call.reduced:
            return pairs
        if settings.backward_passes_per_step > 1:
            # A LossScaleOptimizer calls this once for each pass, and then all ranks have to decide the same.
            return list(zip(finite_everywhere(settings, grads), variables, strict=True))
        return list(zip(_reduced(call, grads), variables, strict=True))


class DistributedNew(_Distributed):
    """In front of an `optimizers.Optimizer` of Keras 2.11 and later."""

    def aggregate_gradients(self, grads_and_vars: Pairs) -> Pairs:
        """See `keras.optimizers.Optimizer.aggregate_gradients`."""
        plain: Any = super()
        return self._combined(plain.aggregate_gradients(grads_and_vars))

    def apply_gradients(
        self,
        grads_and_vars: Pairs,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """See `keras.optimizers.Optimizer.apply_gradients`."""
        plain: Any = super()
        wanted = experimental_aggregate_gradients and not skip_gradients_aggregation
        return self._apply(
            lambda pairs: plain.apply_gradients(
                pairs, **_given(name), **({} if wanted else {"skip_gradients_aggregation": True})
            ),
            list(grads_and_vars),
            wanted,
        )


class DistributedLegacy(_Distributed):
    """In front of an `optimizers.legacy.Optimizer`, the base of most optimizers of TensorFlow Addons."""

    def _aggregate_gradients(self, grads_and_vars: Pairs) -> Pairs:
        plain: Any = super()
        return self._combined(plain._aggregate_gradients(grads_and_vars))

    def apply_gradients(
        self,
        grads_and_vars: Pairs,
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
        **options: Any,
    ) -> Any:
        """See `keras.optimizers.legacy.Optimizer.apply_gradients`."""
        plain: Any = super()
        wanted = experimental_aggregate_gradients
        return self._apply(
            lambda pairs: plain.apply_gradients(
                pairs,
                **_given(name),
                **({} if wanted else {"experimental_aggregate_gradients": False}),
                **options,
            ),
            list(grads_and_vars),
            wanted,
        )

    def _create_all_weights(self, var_list: Any) -> Any:
        plain: Any = super()
        variables = list(var_list)
        call = apply_call.current(self) or ApplyCall(settings_of(self), variables, [])
        with apply_call.under_way(self, call):
            return plain._create_all_weights(variables)

    def _create_slots(self, var_list: Any) -> Any:
        """A wrapper such as Lookahead makes slots and then updates without `apply_gradients`, so without reduction."""
        plain: Any = super()
        if apply_call.current(self) is None:
            refuse_inside(self, "Lookahead")
        return plain._create_slots(var_list)


class DistributedAddonsMulti(DistributedLegacy):
    """In front of TensorFlow Addons' MultiOptimizer, which has no hook: reduces before its members apply."""

    def apply_gradients(self, grads_and_vars: Pairs, *arguments: Any, **options: Any) -> Any:
        """See `tensorflow_addons.optimizers.MultiOptimizer.apply_gradients`."""
        plain: Any = super(_Distributed, self)
        pairs = list(grads_and_vars)
        self._check_norms(pairs)
        return self._apply(lambda pairs: plain.apply_gradients(pairs, *arguments, **options), pairs, True)

    def _check_norms(self, grads_and_vars: Pairs) -> None:
        """Checks the norm of each member, over the variables that it trains."""
        multi: Any = self
        for spec in multi.optimizer_specs:
            names = set(spec["weights"])
            mine = [(grad, each) for grad, each in grads_and_vars if grad is not None and each.name in names]
            member = _compat.innermost(spec["optimizer"])
            apply_call.check_global_norm(member, settings_of(self), *_unzip(mine))


def _reduced(call: ApplyCall, grads: Sequence[Any]) -> list[Any]:
    """The reduced gradients; None where None was."""
    apply_call.warn_of_a_second_sum(call.settings, grads)
    results = iter(call.reduce([grad for grad in grads if grad is not None]))
    return [None if grad is None else next(results) for grad in grads]


def _given(name: str | None) -> dict[str, str]:
    """The argument `name`, if it is given: an `apply_gradients` of the user's need not take it."""
    return {} if name is None else {"name": name}


def _unzip(grads_and_vars: Pairs) -> tuple[list[Any], list[Any]]:
    return [grad for grad, _ in grads_and_vars], [variable for _, variable in grads_and_vars]
