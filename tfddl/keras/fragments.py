"""The parts of DiLoCo that are exchanged one after the other, and the outer optimizer of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.keras.consistency.model_contents import state_of
from tfddl.keras.optimizer_copy import copy_of


class Fragment:
    """Some variables, their theta in float32, and a copy of the outer optimizer.

    Args:
        variables: Variables of Keras or TensorFlow.
        outer: An optimizer of Keras.

    Raises:
        ValueError: No copy of `outer` can be made.
    """

    def __init__(self, variables: Sequence[Any], outer: Any) -> None:
        self._locals = variables
        self._outer = copy_of(outer)
        self._theta = [
            _compat.new_variable(value, f"theta_{index}") for index, value in enumerate(self._values())
        ]
        _compat.build_optimizer(self._outer, self._theta)

    @property
    def outer_variables(self) -> list[Any]:
        """theta and the state of the outer optimizer."""
        return [*self._theta, *state_of(self._outer, self._theta)]

    def begin(self) -> None:
        """Sets theta to the present values of the variables."""
        for theta, value in zip(self._theta, self._values(), strict=True):
            theta.assign(value)

    def _values(self) -> list[np.ndarray]:
        return [np.array(tf.cast(each, tf.float32)) for each in self._locals]

    def outer_gradient(self) -> list[Any]:
        """theta less the weights of this rank, in float32."""
        return [
            tf.convert_to_tensor(theta) - tf.cast(tf.convert_to_tensor(each), tf.float32)
            for theta, each in zip(self._theta, self._locals, strict=True)
        ]

    def take(self, gradient: Sequence[Any], mixing: float) -> None:
        """Makes an outer step, and moves the weights of this rank to theta.

        Args:
            gradient: The mean of the outer gradients.
            mixing: How much of the weights stays, from 0 to 1.
        """
        self._outer.apply_gradients(zip(gradient, self._theta, strict=True))
        for variable, theta in zip(self._locals, self._theta, strict=True):
            constraint = getattr(variable, "constraint", None)
            constrain(theta, constraint)
            value = tf.convert_to_tensor(theta)
            if mixing:
                own = tf.cast(tf.convert_to_tensor(variable), tf.float32)
                value = mixing * own + (1.0 - mixing) * value
            variable.assign(tf.cast(value, variable.dtype))
            if mixing:
                constrain(variable, constraint)


def constrain(variable: Any, constraint: Any) -> None:
    """Applies a constraint, or None, to the value of a variable, as optimizers of Keras do after a step."""
    if constraint is not None:
        variable.assign(constraint(variable))


def divided(variables: Sequence[Any], parts: int) -> list[list[Any]]:
    """Divides variables into successive parts with about equally many values, at least one variable each.

    Raises:
        ValueError: There are fewer variables than parts.
    """
    if len(variables) < parts:
        raise ValueError(
            f"Each fragment has a variable: use at most {len(variables)} fragments. Received: fragments={parts}"
        )
    sizes = [int(np.prod(each.shape)) for each in variables]
    found, begin, total = [], 0, sum(sizes)
    for part in range(parts):
        end = begin + 1
        last = len(variables) - (parts - part - 1)  # leaves one for each part to come
        while end < last and (part + 1 == parts or sum(sizes[: end + 1]) <= total * (part + 1) / parts):
            end += 1
        found.append(list(variables[begin:end]))
        begin = end
    return found


def check_fragments(every: int, fragments: int, delay: int, mixing: float) -> None:
    """Raises a ValueError if the numbers of Streaming DiLoCo do not fit together."""
    if fragments < 1 or every % fragments:
        raise ValueError(
            f"Fragments take turns: choose a number of fragments that divides every. Received: every={every}, "
            f"fragments={fragments}"
        )
    if not 0 <= delay < every // fragments:
        raise ValueError(
            f"An exchange ends before the next one begins: choose a delay from 0 to {every // fragments - 1}. "
            f"Received: delay={delay}, every={every}, fragments={fragments}"
        )
    if not 0.0 <= mixing < 1.0:
        raise ValueError(
            f"mixing is the part of a rank's own weights: use 0 or more, less than 1. Received: {mixing!r}"
        )


def new_outer_optimizer() -> Any:
    """The outer optimizer of the paper (arXiv 2311.08105, section 3)."""
    return _compat.keras().optimizers.SGD(0.7, momentum=0.9, nesterov=True)


def check_outer(optimizer: Any) -> Any:
    """Returns `optimizer` if it is one of Keras."""
    if not hasattr(optimizer, "apply_gradients"):
        raise TypeError(
            "outer_optimizer takes an optimizer of Keras: pass keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True), for "
            f"example. Received: {optimizer!r}"
        )
    return optimizer
