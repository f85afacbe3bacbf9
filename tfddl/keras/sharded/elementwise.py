"""Finds out whether an optimizer updates each value by itself, so that it may update slices."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.keras.optimizer_copy import copy_of

_PROBE = {
    "learning_rate": 1.0,
    "clipnorm": None,
    "clipvalue": None,
    "global_clipnorm": None,
    "use_ema": False,
    "gradient_accumulation_steps": None,
    "loss_scale_factor": None,
}
"""Hyperparameters of the copies: a rate that makes large steps, and none of the choices that tfddl knows how to divide."""


def is_elementwise(optimizer: Any) -> bool:
    """Whether copies of a plain optimizer of Keras 3 take the same two steps with a matrix and with its flat halves.

    Optimizers that look at whole tensors, at norms (LAMB, LARS) or at rows and columns (Adafactor, Muon), do not.
    """
    values, *gradients = np.random.default_rng(0).normal(size=(3, 4, 4)).astype("float32")
    with tf.init_scope():
        whole, halves = [values], np.split(values.reshape(-1), 2)
        at_once = _stepped(copy_of(optimizer, _PROBE), whole, [[each] for each in gradients])
        divided = [np.split(each.reshape(-1), 2) for each in gradients]
        in_halves = _stepped(copy_of(optimizer, _PROBE), halves, divided)
    return bool(np.allclose(at_once, in_halves, rtol=1e-4, atol=1e-6))


def begins_with_copies(optimizer: Any) -> bool:
    """Whether the first values of the slots depend on those of the variables."""
    with tf.init_scope():
        copies = [copy_of(optimizer, _PROBE) for _ in range(2)]
        for number, each in enumerate(copies):
            each.build([_compat.new_variable(np.full([2, 2], number, "float32"), "probe")])
        slots = zip(*(each.variables for each in copies), strict=True)
        return any(not np.array_equal(*map(tf.convert_to_tensor, pair)) for pair in slots)


def _stepped(optimizer: Any, values: list[np.ndarray], gradients: list[list[np.ndarray]]) -> np.ndarray:
    variables = [_compat.new_variable(value, f"probe_{index}") for index, value in enumerate(values)]
    optimizer.build(variables)
    for each in gradients:
        optimizer.apply(list(map(tf.constant, each)), variables)
    return np.concatenate([np.reshape(variable, [-1]) for variable in variables])
