"""The weight of this rank's loss in a step on a part of a global batch."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.gradients.gradient_options import GradientOptions
from tfddl.ops.constants import Sum


class _Weight:
    def __init__(self, of_dtype: Callable[[Any], tf.Tensor]) -> None:
        self.of_dtype = of_dtype
        self.applied: set[int] = set()  # the optimizers that have scaled a loss by it


_CURRENT: ContextVar[_Weight | None] = ContextVar("loss_weight", default=None)


@contextmanager
def under_way(of_dtype: Callable[[Any], tf.Tensor]) -> Iterator[None]:
    """Gives a weight to the losses, or else to the gradients, that reach distributed optimizers.

    Args:
        of_dtype: Returns the weight, a scalar, in a dtype.
    """
    token = _CURRENT.set(_Weight(of_dtype))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def weighted_loss(optimizer: Any, loss: Any) -> Any:
    """The loss that an optimizer is asked to scale, times the weight; as it is if no tape would see the product."""
    weight = _CURRENT.get()
    if weight is None:
        return loss
    loss = tf.convert_to_tensor(loss)
    if not _compat.is_recorded(loss):
        return loss
    weight.applied.add(id(_compat.innermost(optimizer)))
    return loss * weight.of_dtype(loss.dtype)


def weighted_gradients(optimizer: Any, grads: Sequence[Any]) -> list[Any]:
    """The gradients times the weight, unless they come from a loss that `weighted_loss` has scaled for the optimizer.

    A `train_step` of the user's need not call `optimizer.scale_loss`, and may call `apply` several times.
    """
    weight = _CURRENT.get()
    if weight is None or id(_compat.innermost(optimizer)) in weight.applied:
        return list(grads)
    return [None if grad is None else tf.math.scalar_mul(weight.of_dtype(grad.dtype), grad) for grad in grads]


def options_under_way(options: GradientOptions) -> GradientOptions:
    """The options of a reduction: weighted gradients are summed, in float16 with the overflows of one process."""
    return options if _CURRENT.get() is None else dataclasses.replace(options, op=Sum)
