"""Loss scaling: all ranks take the same step or skip it together.

Keras' LossScaleOptimizer looks at its gradients and takes one of two branches; the optimizer inside reduces
in one of them only. Were the decision each rank's own, an infinity on one rank would leave the others
waiting in the branch that this rank does not enter. So the decision is made on what all ranks have in
common.
"""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.gradients import reduced_marks
from tfddl.keras.distributed.adoption import Adopted, adopt, is_adopted, settings_of
from tfddl.keras.distributed.base_optimizer import applying, refuse_global_norm
from tfddl.keras.distributed.handover import complete, reduce_as_set, reduce_overwritten
from tfddl.ops import names
from tfddl.ops.allreduce import allreduce
from tfddl.ops.constants import Sum
from tfddl.runtime.process_sets import id_of


class DistributedLossScale(Adopted):
    """A LossScaleOptimizer around a distributed optimizer."""

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """See `keras.optimizers.LossScaleOptimizer.apply`."""
        plain: Any = super()
        return apply_in_agreement(self, plain.apply, grads, trainable_variables)

    def check_finite(self, grads: Sequence[Any]) -> Any:
        """Whether all gradients are finite, on all ranks."""
        plain: Any = super()
        finite = plain.check_finite(grads)
        settings = settings_of(self)
        process_set = settings.options.process_set
        number = id_of(process_set, settings.name)
        common = settings.done and not any(map(reduced_marks.is_local, grads))
        if common or process_set.included() is False:
            return finite
        name = names.unique(f"{settings.owner}.finite", number)
        ranks = allreduce(tf.cast(finite, tf.int32), op=Sum, name=name, process_set=process_set)
        return tf.equal(ranks, process_set.size())


def apply_in_agreement(optimizer: Any, apply: Any, grads: Sequence[Any], trainable_variables: Any) -> Any:
    """Runs a LossScaleOptimizer's `apply` so that all ranks decide alike.

    Without accumulation the scaled gradients are reduced before the decision: an infinity on one rank becomes
    one on all. With accumulation that would be a reduction for each micro-batch; there only the decision is
    shared, and the optimizer inside reduces its accumulated gradients at the update.
    """
    settings = settings_of(optimizer)
    inner = optimizer.inner_optimizer
    grads = list(grads)
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)
    variables = inner._trainable_variables if trainable_variables is None else trainable_variables
    if len(variables) != len(grads):
        return apply(grads, trainable_variables)  # which says what is wrong
    grads = complete(settings, grads, variables)
    grads = reduce_overwritten(settings, grads, variables)
    if not inner.gradient_accumulation_steps:
        grads = reduce_as_set(settings, grads, variables)
    refuse_global_norm(inner, settings, grads, variables)
    with applying(settings, reduced_marks.all_reduced(grads)):
        return apply(grads, trainable_variables)


def adopt_loss_scale(optimizer: Any) -> None:
    """Adopts a LossScaleOptimizer, unless that has been done."""
    if not is_adopted(optimizer):
        adopt(optimizer, DistributedLossScale)


@functools.cache
def watch_loss_scale_optimizers() -> None:
    """Has every LossScaleOptimizer that is put around a distributed optimizer adopted.

    `compile()` makes one under mixed_float16, and users do; nothing calls us at that moment. Therefore
    Keras' class itself looks, when an instance is made and, for optimizers distributed after that, when it
    is applied. The change does nothing for others.
    """
    original = _compat.keras().optimizers.LossScaleOptimizer
    plain_init, plain_apply = original.__init__, original.apply

    @functools.wraps(plain_init)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        plain_init(self, *arguments, **options)
        if is_adopted(self.inner_optimizer):
            adopt_loss_scale(self)

    @functools.wraps(plain_apply)
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        _refuse_several(self.inner_optimizer)
        if is_adopted(self) or not is_adopted(self.inner_optimizer):
            return plain_apply(self, grads, trainable_variables)
        adopt_loss_scale(self)
        return apply_in_agreement(self, functools.partial(plain_apply, self), grads, trainable_variables)

    original.__init__, original.apply = init, apply


def _refuse_several(inner: Any) -> None:
    """A plain MultiOptimizer of distributed optimizers would be applied by some ranks only."""
    if not _compat.has_inner_optimizers(inner) or is_adopted(inner):
        return
    if any(map(is_adopted, inner._inner_optimizers)):
        raise ValueError(
            "A LossScaleOptimizer around a MultiOptimizer has to know that its optimizers are distributed: give the "
            f"MultiOptimizer to tfddl.DistributedOptimizer. Received: inner_optimizer={inner!r}"
        )
