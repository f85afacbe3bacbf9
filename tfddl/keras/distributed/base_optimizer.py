"""The class that is put in front of an optimizer of Keras 3."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl.keras.distributed import apply_call, loss_weight
from tfddl.keras.distributed.apply_call import ApplyCall
from tfddl.keras.distributed.backward_passes import undo_mean
from tfddl.keras.distributed.dynamic_subclass import DynamicSubclass, has_own
from tfddl.keras.distributed.settings import settings_of


class Distributed(DynamicSubclass):
    """Reduces where Keras clips: once for each update, on accumulated and unscaled gradients.

    Keras 3.4 clips, and so reduces, once for each micro-batch. If the user's class has an `apply` or `apply_gradients` of
    its own, the gradients of each call are reduced before this method: it may normalize them.
    """

    _trainable_variables: list[Any]

    def scale_loss(self, loss: Any) -> Any:
        """See `keras.optimizers.Optimizer.scale_loss`."""
        plain: Any = super()
        return plain.scale_loss(loss_weight.weighted_loss(self, loss))

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """See `keras.optimizers.Optimizer.apply`."""
        plain: Any = super()
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if len(variables) != len(grads):
            return plain.apply(grads, trainable_variables)  # Keras raises the error
        grads, call = self._begin(grads, variables, has_own(self, "apply"))
        apply_call.check_global_norm(self, settings_of(self), grads, variables)
        with apply_call.under_way(self, call):
            result = plain.apply(grads, None if trainable_variables is None else variables)
        _check_reached(self, call)
        return result

    def apply_gradients(self, grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
        """See `keras.optimizers.Optimizer.apply_gradients`."""
        plain: Any = super()
        pairs = list(grads_and_vars)
        if not has_own(self, "apply_gradients"):
            return plain.apply_gradients(pairs, *arguments, **options)
        variables = [variable for _, variable in pairs]
        grads, call = self._begin([grad for grad, _ in pairs], variables, True)
        with apply_call.under_way(self, call):
            return plain.apply_gradients(list(zip(grads, variables, strict=True)), *arguments, **options)

    def _begin(
        self, grads: Sequence[Any], variables: Sequence[Any], at_once: bool
    ) -> tuple[list[Any], ApplyCall]:
        """The gradients for the user's or Keras' method, reduced if `at_once`, and the call."""
        call = apply_call.current(self)
        if call is None:  # else another method or optimizer has made the call, and has given the weight
            grads = loss_weight.weighted_gradients(self, grads)
        elif call.reduced:
            call = apply_call.new(call.settings, grads, variables)
            call.reduced = True
            return list(grads), call
        return apply_call.start(settings_of(self), grads, variables, at_once)

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        plain: Any = super()
        settings = settings_of(self)
        call = apply_call.current(self) or apply_call.new(settings, grads, None)
        return plain._clip_gradients(undo_mean(settings, call.reduce(grads)))


def _check_reached(optimizer: Any, call: ApplyCall) -> None:
    """Raises an error for an optimizer class that would train on unreduced gradients."""
    # In eager mode an accumulating optimizer clips, and so reduces, only in every N-th call.
    waits = optimizer.gradient_accumulation_steps and tf.executing_eagerly()
    if not (call.reached or call.reduced or waits or not call.slots):
        raise RuntimeError(
            f"{type(optimizer).__name__} never calls `_clip_gradients`, where DistributedOptimizer combines "
            "gradients: use tfddl.DistributedGradientTape with the plain optimizer instead."
        )
