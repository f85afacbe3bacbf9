"""Finite differences over the inputs of all ranks, for ops that are linear in each value."""

from collections.abc import Callable

import numpy as np

STEP = 1e-3


def differences(rank: int, values: list[np.ndarray], loss: Callable[[list[np.ndarray]], float]) -> np.ndarray:
    """d loss / d values[rank], where `loss` is the sum of all ranks' losses; exact, as the ops are linear."""
    gradient = np.zeros(values[rank].shape)
    for index in np.ndindex(gradient.shape):
        sides = []
        for step in (STEP, -STEP):
            moved = [value.copy() for value in values]
            moved[rank][index] += step
            sides.append(loss(moved))
        gradient[index] = (sides[0] - sides[1]) / (2 * STEP)
    return gradient
