"""Copies of an optimizer: the same class and hyperparameters, without variables."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfddl import _compat

_RATE = "learning_rate"


def copy_of(optimizer: Any, changes: Mapping[str, Any] | None = None) -> Any:
    """A new optimizer of the same class, from its configuration.

    The learning rate is no part of that configuration: a function or a schedule may have none, and the copy uses the same.

    Args:
        optimizer: An optimizer of Keras.
        changes: Hyperparameters of the copy; those that the optimizer does not have are ignored.

    Raises:
        ValueError: The class of the optimizer makes no copy from its configuration.
    """
    rate = vars(optimizer).get("_learning_rate")  # legacy optimizers of Keras 2 hold it elsewhere
    try:
        config = dict(optimizer.get_config() if rate is None else _without_rate(optimizer).get_config())
        if rate is not None and _RATE in config:
            config[_RATE] = float(tf.convert_to_tensor(rate)) if _compat.is_variable(rate) else rate
        config |= {name: value for name, value in (changes or {}).items() if name in config}
        return type(optimizer).from_config(config)
    except Exception as error:  # whatever code of the user's own raises
        raise ValueError(
            "tfddl needs a copy of this optimizer, and Keras makes one from its configuration: let its get_config() return "
            "the arguments of its __init__, or use an optimizer that comes with Keras. "
            f"Received: optimizer={optimizer!r}, with {type(error).__name__}: {error}"
        ) from error


def _without_rate(optimizer: Any) -> Any:
    """An object with the same class and attributes, but a plain number as its learning rate."""
    found = object.__new__(type(optimizer))
    vars(found).update(vars(optimizer), _learning_rate=tf.constant(1.0))
    return found
