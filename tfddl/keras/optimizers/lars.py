"""LARS: momentum SGD with steps in proportion to the norm of each layer's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.keras.optimizers.layerwise import Layerwise, norm, ratio_of

_keras = _compat.keras()
Optimizer: Any = _keras.optimizers.Optimizer


@_keras.saving.register_keras_serializable(package="tfddl")
class LARS(Layerwise, Optimizer):
    """Layer-wise Adaptive Rate Scaling.

    For the weights `w` of a layer, with gradient `g`, learning rate `lr`, `weight_decay` `d` and `trust_coefficient` `c`:

        rate = lr * c * |w| / (|g| + d * |w| + epsilon)
        v = momentum * v + rate * (g + d * w)
        w = w - v

    With `nesterov`, `w = w - momentum * v - rate * (g + d * w)`. If `|w|` or `|g|` is zero, or the variable is excluded
    from layer adaptation, `rate` is `lr`.

    Args:
        learning_rate: A float, a `keras.optimizers.schedules.LearningRateSchedule`, or a callable. Defaults to `0.1`.
        momentum: Float from 0 to 1. Defaults to `0.9`.
        weight_decay: Float. Defaults to `None`: no decay.
        trust_coefficient: Float. Defaults to `0.001`.
        epsilon: Float, added to the denominator. Defaults to `0.0`.
        nesterov: Whether to use Nesterov momentum. Defaults to `False`.
        exclude_from_weight_decay: Regular expressions. A variable does not decay if one of them is found in its path.
            `["bias", "gamma", "beta"]` is usual. Defaults to `None`.
        exclude_from_layer_adaptation: Likewise, for the scaling of `rate`. Defaults to `None`.
        name: Defaults to `"lars"`.
        **kwargs: The other arguments of `keras.optimizers.Optimizer`.

    Raises:
        TypeError: If an exclusion is no list of strings.

    Reference:
        You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017, arXiv:1708.03888, algorithm 1.
    """

    momentum_holds_learning_rate = True

    def __init__(
        self,
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        weight_decay: float | None = None,
        trust_coefficient: float = 0.001,
        epsilon: float = 0.0,
        nesterov: bool = False,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        name: str = "lars",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, name=name, **kwargs)
        self.momentum, self.nesterov = momentum, nesterov
        self.trust_coefficient, self.epsilon = trust_coefficient, epsilon
        self._exclude(weight_decay=exclude_from_weight_decay, layer_adaptation=exclude_from_layer_adaptation)

    def build(self, variables: Sequence[Any]) -> None:
        """Makes one slot for each variable."""
        if not self.built:
            super().build(variables)
            self.momentums = [
                self.add_variable_from_reference(variable, name="momentum") for variable in variables
            ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """See `keras.optimizers.Optimizer.update_step`."""
        index, g, w, rate = self._prepared(gradient, variable, learning_rate)
        decay = self._decay(index)
        if self._adapts(index):
            w_norm, g_norm = norm(w), norm(g)
            # With a zero gradient or zero weights `ratio_of` returns 1.
            denominator = tf.where(g_norm > 0, g_norm + decay * w_norm + self.epsilon, tf.zeros_like(g_norm))
            rate *= ratio_of(w_norm, denominator, w.dtype, self.trust_coefficient)
        step = rate * (g + decay * w)
        velocity = self.momentums[index]
        self.assign(velocity, self.momentum * tf.convert_to_tensor(velocity) + step)
        velocity = tf.convert_to_tensor(velocity)
        self.assign_sub(variable, self.momentum * velocity + step if self.nesterov else velocity)

    def get_config(self) -> dict[str, Any]:
        """See `keras.optimizers.Optimizer.get_config`."""
        own = {key: getattr(self, key) for key in ("momentum", "nesterov", "trust_coefficient", "epsilon")}
        return {**super().get_config(), **own}
