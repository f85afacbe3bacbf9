"""Momentum correction: scales momentum that contains the learning rate when the rate changes."""

from typing import Any

from tfddl import _compat
from tfddl.keras.keras2 import optimizer_state


def follow(optimizer: Any, before: float, after: float) -> None:
    """Scales the momentum of an optimizer as if its past steps had been made with the new learning rate.

    SGD and RMSprop add `learning_rate * gradient` to their momentum; other optimizers multiply by the rate afterwards and
    need no correction. The function scales the slots and not the coefficient, which is a constant in the compiled train
    step. The slots are also right after a step that loss scaling skips or that only accumulates.

    Args:
        optimizer: A Keras optimizer, or a wrapper around one: a LossScaleOptimizer, or TensorFlow Addons' Lookahead,
            MovingAverage and SWA, which take the rate of the wrapped optimizer.
        before: The old learning rate.
        after: The new learning rate.
    """
    if before in (0.0, after):
        return
    for each in optimizer_state.nested(optimizer):
        for slot in _compat.momentum_with_learning_rate(each):
            slot.assign(slot * (after / before))
