"""Loss scaling: all ranks take the same step, or all skip it.

Keras' LossScaleOptimizer takes one of two branches, depending on whether its gradients are finite. The optimizer inside
reduces in one of them only. If each rank decided alone, an infinity on one rank would make that rank skip the branch in
which the others wait for it. So all ranks decide on the same value.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl.gradients import reduced_marks
from tfddl.keras.distributed import apply_call, loss_weight
from tfddl.keras.distributed.dynamic_subclass import DynamicSubclass
from tfddl.keras.distributed.settings import settings_of
from tfddl.ops import names
from tfddl.ops.allreduce import allreduce
from tfddl.ops.compression import is_stateful
from tfddl.ops.constants import Sum
from tfddl.ops.topology import size_op
from tfddl.runtime.process_sets import id_of


class DistributedLossScale(DynamicSubclass):
    """A LossScaleOptimizer around a distributed optimizer."""

    inner_optimizer: Any
    built: bool
    variables: list[Any]
    _variables: list[Any]

    def scale_loss(self, loss: Any) -> Any:
        """See `keras.optimizers.LossScaleOptimizer.scale_loss`."""
        plain: Any = super()
        return plain.scale_loss(loss_weight.weighted_loss(self, loss))

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """See `keras.optimizers.LossScaleOptimizer.apply`.

        Without accumulation the scaled gradients are reduced before the decision: an infinity on one rank becomes an
        infinity on all. With accumulation this would be one reduction for each micro-batch. There the ranks share the
        decision only, and the optimizer inside reduces its accumulated gradients at the update; so does a sharded one. A
        compression that keeps its errors takes this way too: its errors must not have the scale of one step, nor those of
        a skipped one.
        """
        plain: Any = super()
        settings, inner = settings_of(self), self.inner_optimizer
        grads = loss_weight.weighted_gradients(self, grads)
        known = inner._trainable_variables if trainable_variables is None else trainable_variables
        variables = list(known)
        if len(variables) != len(grads):
            return plain.apply(grads, trainable_variables)  # Keras raises the error
        keeps = (
            inner.gradient_accumulation_steps or settings.sharded or is_stateful(settings.options.compression)
        )
        grads, call = apply_call.start(settings, grads, variables, not keeps)
        apply_call.check_global_norm(inner, settings, grads, variables)
        with apply_call.under_way(self, call):
            return plain.apply(grads, None if trainable_variables is None else variables)

    def check_finite(self, grads: Sequence[Any]) -> Any:
        """Whether all gradients are finite, on all ranks."""
        plain: Any = super()
        finite = plain.check_finite(grads)
        settings = settings_of(self)
        process_set = settings.options.process_set
        number = id_of(process_set, settings.name)
        call = apply_call.current(self)
        equal = call is not None and call.reduced and not any(map(reduced_marks.is_local, grads))
        if equal or process_set.included() is False:
            return finite
        name = names.unique(f"{settings.owner}.finite", number)
        ranks = allreduce(
            tf.cast(finite, tf.int32), op=Sum, name=name, ignore_name_scope=True, process_set=process_set
        )
        return tf.equal(ranks, size_op(process_set))

    def save_own_variables(self, store: Any) -> None:
        """See `keras.optimizers.Optimizer.save_own_variables`: its own variables, then those of the optimizer inside."""
        plain: Any = super()
        if not (settings_of(self).sharded and self.built):
            plain.save_own_variables(store)
            return
        inner: dict[str, Any] = {}
        self.inner_optimizer.save_own_variables(inner)
        values = [np.asarray(variable) for variable in self._variables] + list(inner.values())
        for index, value in enumerate(values):
            store[str(index)] = value

    def load_own_variables(self, store: Any) -> None:
        """See `keras.optimizers.Optimizer.load_own_variables`: those of the optimizer inside are whole in the store."""
        plain: Any = super()
        own, count = len(self._variables), len(self.variables)
        if not (settings_of(self).sharded and self.built) or len(store.keys()) != count:
            plain.load_own_variables(store)
            return
        for index, variable in enumerate(self._variables):
            variable.assign(store[str(index)])
        self.inner_optimizer.load_own_variables(
            {str(index - own): store[str(index)] for index in range(own, count)}
        )
