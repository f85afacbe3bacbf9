"""Optimizers of Keras 2 and of TensorFlow Addons, taught to combine gradients.

Both kinds, `optimizers.Optimizer` and `optimizers.legacy.Optimizer`, have a hook for it. It comes ahead of clipping, and a
LossScaleOptimizer calls it ahead of its decision to skip a step, which is therefore the same on all ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.gradients import reduced_marks
from tfddl.keras.distributed import places
from tfddl.keras.distributed.adoption import Adopted, Settings, adopt, is_adopted, set_settings, settings_of
from tfddl.keras.distributed.base_optimizer import applying, refuse_global_norm
from tfddl.keras.distributed.handover import complete, reduce_as_set
from tfddl.keras.keras2 import optimizer_state
from tfddl.keras.keras2.accumulation import Accumulation
from tfddl.keras.keras2.finite import finite_everywhere

Pairs = Sequence[tuple[Any, Any]]
_ACCUMULATION = "_tfddl_accumulation"


def distribute(optimizer: Any, settings: Settings) -> Any:
    """Adopts `optimizer`, or the one inside a loss scale optimizer, unless that has been done."""
    if _compat.is_loss_scale_optimizer(optimizer):
        distribute(optimizer.inner_optimizer, settings)
    elif not is_adopted(optimizer):
        places.watch_keras_2()
        set_settings(optimizer, settings)
        vars(optimizer)[_ACCUMULATION] = Accumulation(settings)
        adopt(optimizer, _class_for(optimizer))
    return optimizer


def _class_for(optimizer: Any) -> type[Adopted]:
    if _compat.is_addons_multi_optimizer(optimizer):
        return DistributedAddonsMulti
    return DistributedLegacy if _compat.is_legacy_optimizer(optimizer) else DistributedNew


def has_distributed_members(optimizer: Any) -> bool:
    """Whether it is a MultiOptimizer of TensorFlow Addons with a distributed optimizer in it."""
    return any(_distributed_members(optimizer))


def check_members(optimizer: Any) -> None:
    """Checks that a MultiOptimizer of TensorFlow Addons combines all gradients, or none.

    Raises:
        ValueError: If only some of its members are distributed, or if they are, and not it, inside a LossScaleOptimizer.
    """
    inner = _compat.innermost(optimizer)
    members = _distributed_members(inner)
    if is_adopted(inner) or not any(members):
        return
    if not all(members):
        missing = [number for number, distributed in enumerate(members) if not distributed]
        raise ValueError(
            "Some members of a MultiOptimizer are not distributed, so that each rank would train their layers on its own: "
            "give the MultiOptimizer to tfddl.DistributedOptimizer, or every member. "
            f"Received: of {len(members)} members, numbers {missing} (from 0) not distributed"
        )
    if inner is not optimizer:
        raise ValueError(
            "A LossScaleOptimizer, which compile() makes under mixed_float16, would combine no gradients around a "
            "MultiOptimizer whose members are distributed: give the MultiOptimizer to tfddl.DistributedOptimizer, and not "
            f"its members. Received: inner_optimizer={inner!r}"
        )


def check_not_inside(optimizer: Any) -> None:
    """Checks that no distributed optimizer is inside of a wrapper of TensorFlow Addons.

    Args:
        optimizer: One that is not distributed.

    Raises:
        ValueError: If there is one.
    """
    for inner in optimizer_state.nested(optimizer):
        if is_adopted(inner):
            _refuse_inside(inner, type(_compat.innermost(optimizer)).__name__)


def _refuse_inside(optimizer: Any, wrapper: str) -> None:
    name = type(optimizer).__name__
    raise ValueError(
        "A distributed optimizer inside of one that makes its own updates, such as Lookahead or MovingAverage, "
        f"would combine no gradients: write tfddl.DistributedOptimizer({wrapper}({name}(...))). "
        f"Received: {name}, distributed, inside of another optimizer"
    )


def _distributed_members(optimizer: Any) -> list[bool]:
    if not _compat.is_addons_multi_optimizer(optimizer):
        return []
    return [is_adopted(_compat.innermost(spec["optimizer"])) for spec in optimizer.optimizer_specs]


class _Distributed(Adopted):
    """What both kinds share."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies as Keras 2 does; it does not pickle."""
        return object.__reduce_ex__(self, protocol)

    def _apply(self, plain: Callable[[Pairs], Any], grads_and_vars: Pairs, wanted: bool) -> Any:
        """Runs Keras' `apply_gradients`, which comes to the hook if it is `wanted`."""
        settings = settings_of(self)
        places.remember(grads_and_vars)
        pairs = [(grad, variable) for grad, variable in grads_and_vars if grad is not None]
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        refuse_global_norm(self, settings, grads, variables)
        optimizer: Any = self
        accumulation: Accumulation = vars(self)[_ACCUMULATION]
        reduced = reduced_marks.all_reduced(grads)
        if settings.backward_passes_per_step > 1 and pairs:
            with applying(settings, True, variables):
                accumulation.apply(optimizer, plain, pairs, reduced)
            # What a LossScaleOptimizer expects in its branch.
            return tf.no_op() if _compat.is_legacy_optimizer(optimizer) else optimizer.iterations
        with applying(settings, reduced or not wanted, variables):
            result = plain(grads_and_vars)
            if pairs and not (settings.asked or settings.done):
                raise RuntimeError(
                    f"{type(self).__name__} never calls the hook in which DistributedOptimizer combines gradients: use "
                    "tfddl.DistributedGradientTape with the plain optimizer instead."
                )
        return result

    def _combined(self, grads_and_vars: Pairs) -> Pairs:
        """What the hook makes of gradients."""
        settings = settings_of(self)
        pairs = list(grads_and_vars)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        if settings.done:
            return pairs
        settings.asked = True
        if settings.backward_passes_per_step == 1:
            grads = complete(settings, grads, variables)
            grads = reduce_as_set(settings, grads, variables)
        else:  # a LossScaleOptimizer, once for each pass: what it decides must be the same on all ranks
            grads = finite_everywhere(settings, grads)
        return list(zip(grads, variables, strict=True))


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
            lambda pairs: plain.apply_gradients(pairs, name, skip_gradients_aggregation=not wanted),
            list(grads_and_vars),
            wanted,
        )


class DistributedLegacy(_Distributed):
    """In front of an `optimizers.legacy.Optimizer`, as most of TensorFlow Addons are."""

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
                pairs, name=name, experimental_aggregate_gradients=wanted, **options
            ),
            list(grads_and_vars),
            wanted,
        )

    def _create_all_weights(self, var_list: Any) -> Any:
        plain: Any = super()
        settings = settings_of(self)
        with applying(settings, settings.done, list(var_list)):
            return plain._create_all_weights(var_list)

    def _create_slots(self, var_list: Any) -> Any:
        """A wrapper such as Lookahead asks for slots and then updates without `apply_gradients`, and so unreduced."""
        plain: Any = super()
        if settings_of(self).variables is None:
            _refuse_inside(self, "Lookahead")
        return plain._create_slots(var_list)


class DistributedAddonsMulti(DistributedLegacy):
    """In front of TensorFlow Addons' MultiOptimizer, which has no hook: reduces ahead of its members."""

    def apply_gradients(self, grads_and_vars: Pairs, *arguments: Any, **options: Any) -> Any:
        """See `tensorflow_addons.optimizers.MultiOptimizer.apply_gradients`."""
        plain: Any = super(_Distributed, self)
        pairs = list(grads_and_vars)
        self._check_norms(pairs)
        return self._apply(
            lambda pairs: plain.apply_gradients(self._combined(pairs), *arguments, **options), pairs, True
        )

    def _check_norms(self, grads_and_vars: Pairs) -> None:
        """Each member clips what it trains: by a norm over that."""
        multi: Any = self
        for spec in multi.optimizer_specs:
            names = set(spec["weights"])
            mine = [(grad, each) for grad, each in grads_and_vars if grad is not None and each.name in names]
            grads, variables = [grad for grad, _ in mine], [each for _, each in mine]
            refuse_global_norm(_compat.innermost(spec["optimizer"]), settings_of(self), grads, variables)
