"""Finds out whether an optimizer updates each value by itself, so that it may update slices."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat

_WHOLE = {
    "clipnorm": None,
    "clipvalue": None,
    "global_clipnorm": None,
    "use_ema": False,
    "gradient_accumulation_steps": None,
    "loss_scale_factor": None,
}
"""Choices of an optimizer that tfddl knows how to divide."""


def is_elementwise(optimizer: Any) -> bool:
    """Whether copies of a plain optimizer of Keras 3 take the same two steps with a matrix and with its flat halves.

    Optimizers that look at whole tensors, at norms (LAMB, LARS) or at rows and columns (Adafactor, Muon), do not.
    """
    kind, config = type(optimizer), optimizer.get_config()
    config |= {name: value for name, value in _WHOLE.items() if name in config}
    values, *gradients = np.random.default_rng(0).normal(size=(3, 4, 4)).astype("float32")
    with tf.init_scope():
        whole, halves = [values], np.split(values.reshape(-1), 2)
        at_once = _stepped(kind.from_config(dict(config)), whole, [[each] for each in gradients])
        divided = [np.split(each.reshape(-1), 2) for each in gradients]
        in_halves = _stepped(kind.from_config(dict(config)), halves, divided)
    return bool(np.allclose(at_once, in_halves, rtol=1e-4, atol=1e-6))


def _stepped(optimizer: Any, values: list[np.ndarray], gradients: list[list[np.ndarray]]) -> np.ndarray:
    variables = [_compat.new_variable(value, f"probe_{index}") for index, value in enumerate(values)]
    optimizer.build(variables)
    for each in gradients:
        optimizer.apply(list(map(tf.constant, each)), variables)
    return np.concatenate([np.reshape(variable, [-1]) for variable in variables])
