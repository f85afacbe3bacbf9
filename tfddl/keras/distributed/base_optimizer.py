"""The class that is put in front of an optimizer of Keras 3."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl.keras.distributed import apply_call, loss_weight
from tfddl.keras.distributed.adoption import Adopted
from tfddl.keras.distributed.apply_call import ApplyCall
from tfddl.keras.distributed.backward_passes import undo_mean
from tfddl.keras.distributed.settings import settings_of


class Distributed(Adopted):
    """Reduces where Keras clips: once for each update, on accumulated and unscaled gradients.

    Keras 3.4 clips, and so reduces, once for each micro-batch.
    """

    _trainable_variables: list[Any]

    def scale_loss(self, loss: Any) -> Any:
        """See `keras.optimizers.Optimizer.scale_loss`."""
        plain: Any = super()
        return plain.scale_loss(loss_weight.weighted_loss(self, loss))

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """See `keras.optimizers.Optimizer.apply`."""
        plain: Any = super()
        settings = settings_of(self)
        call = apply_call.current(self)
        if (
            call is None
        ):  # else a LossScaleOptimizer or a MultiOptimizer has made it, and has given the weight
            grads = loss_weight.weighted_gradients(self, grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if len(variables) != len(grads):
            return plain.apply(grads, trainable_variables)  # Keras raises the error
        if call is None:
            grads, call = apply_call.start(settings, grads, variables)
        apply_call.check_global_norm(self, settings, grads, variables)
        with apply_call.under_way(self, call):
            result = plain.apply(grads, None if trainable_variables is None else variables)
        _check_reached(self, call)
        return result

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        plain: Any = super()
        settings = settings_of(self)
        call = apply_call.current(self) or apply_call.new(settings, grads, None)
        return plain._clip_gradients(undo_mean(settings, call.reduce(grads)))


def _check_reached(optimizer: Any, call: ApplyCall) -> None:
    """Raises an error for an optimizer class with an `apply` of its own, which would train on unreduced gradients."""
    # In eager mode an accumulating optimizer clips, and so reduces, only in every N-th call.
    waits = optimizer.gradient_accumulation_steps and tf.executing_eagerly()
    if not (call.reached or call.reduced or waits or not call.slots):
        raise RuntimeError(
            f"{type(optimizer).__name__} never calls `_clip_gradients`, where DistributedOptimizer combines "
            "gradients: use tfddl.DistributedGradientTape with the plain optimizer instead."
        )
