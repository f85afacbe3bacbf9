"""LAMB: Adam with steps in proportion to the norm of each layer's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.keras.optimizers.layerwise import Layerwise, at_least_float32, norm, ratio_of

_keras = _compat.keras()
Optimizer: Any = _keras.optimizers.Optimizer


@_keras.saving.register_keras_serializable(package="tfddl")
class LAMB(Layerwise, Optimizer):
    """Layer-wise adaptive moments, with weight decay as in the paper.

    For the weights `w` of a layer in step `t`, with gradient `g`, learning rate `lr` and `weight_decay` `d`:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g^2
        u = m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon) + d * w
        w = w - lr * |w| / |u| * u

    If `|w|` or `|u|` is zero, or the variable is excluded from layer adaptation, `w = w - lr * u`.

    `keras.optimizers.Lamb` without weight decay is the same, except for its `epsilon` of `1e-7`. Its `weight_decay`
    subtracts `lr * d * w` before the step, so the decay is not part of `u` and is not scaled. It excludes no variable from
    layer adaptation.

    Args:
        learning_rate: A float, a `keras.optimizers.schedules.LearningRateSchedule`, or a callable. Defaults to `0.001`.
        beta_1: Float. Defaults to `0.9`.
        beta_2: Float. Defaults to `0.999`.
        epsilon: Float. Defaults to `1e-6`.
        weight_decay: Float. Defaults to `None`: no decay.
        exclude_from_weight_decay: Regular expressions. A variable does not decay if one of them is found in its path.
            `["bias", "gamma", "beta"]` is usual. Defaults to `None`.
        exclude_from_layer_adaptation: Likewise, for the factor `|w| / |u|`. Defaults to `None`.
        name: Defaults to `"lamb"`.
        **kwargs: The other arguments of `keras.optimizers.Optimizer`.

    Raises:
        TypeError: If an exclusion is no list of strings.

    Reference:
        You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", 2020, arXiv:1904.00962,
        algorithm 2.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float | None = None,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        name: str = "lamb",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, name=name, **kwargs)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self._exclude(weight_decay=exclude_from_weight_decay, layer_adaptation=exclude_from_layer_adaptation)

    def build(self, variables: Sequence[Any]) -> None:
        """Makes two slots for each variable."""
        if not self.built:
            super().build(variables)
            self._momentums, self._velocities = (
                [self.add_variable_from_reference(one, name=name) for one in variables]
                for name in ("momentum", "velocity")
            )

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """See `keras.optimizers.Optimizer.update_step`."""
        index, g, w, rate = self._prepared(gradient, variable, learning_rate)
        wide = at_least_float32(w.dtype)  # 0.999 in bfloat16 is 1
        step = tf.cast(self.iterations + 1, wide)
        moments = []
        for slot, beta, new in (
            (self._momentums[index], self.beta_1, g),
            (self._velocities[index], self.beta_2, tf.square(g)),
        ):
            old = tf.convert_to_tensor(slot)
            self.assign(slot, old + (1 - beta) * (new - old))
            correction = 1 - tf.pow(tf.constant(beta, wide), step)
            moments.append(tf.convert_to_tensor(slot) / tf.cast(correction, w.dtype))
        update = moments[0] / (tf.sqrt(moments[1]) + self.epsilon) + self._decay(index) * w
        if self._adapts(index):
            rate *= ratio_of(norm(w), norm(update), w.dtype)
        self.assign_sub(variable, rate * update)

    def get_config(self) -> dict[str, Any]:
        """See `keras.optimizers.Optimizer.get_config`."""
        own = {key: getattr(self, key) for key in ("beta_1", "beta_2", "epsilon")}
        return {**super().get_config(), **own}
