"""Momentum correction: momentum that holds a learning rate follows when the rate changes."""

from typing import Any

from tfddl import _compat
from tfddl.keras.keras2 import optimizer_state


def follow(optimizer: Any, before: float, after: float) -> None:
    """Scales the momentum of an optimizer as if its past steps had been made with the new learning rate.

    SGD and RMSprop add `learning_rate * gradient` to their momentum; other optimizers multiply by the rate
    afterwards and need nothing. The slots are scaled, not the coefficient: that is a Python number, compiled
    into the train step; and the slots stay right in a step that loss scaling skips or that only accumulates.

    Args:
        optimizer: A Keras optimizer, or one around it: a LossScaleOptimizer, or TensorFlow Addons' Lookahead,
            MovingAverage and SWA, which leave the rate to the one inside.
        before: The learning rate so far.
        after: The new one.
    """
    if before in (0.0, after):
        return
    for each in optimizer_state.nested(optimizer):
        for slot in _compat.momentum_with_learning_rate(each):
            slot.assign(slot * (after / before))
