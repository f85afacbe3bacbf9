"""NovoGrad: momentum SGD on gradients normalized layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.keras.optimizers.layerwise import Layerwise, at_least_float32, norm

_keras = _compat.keras()
Optimizer: Any = _keras.optimizers.Optimizer


@_keras.saving.register_keras_serializable(package="tfddl")
class NovoGrad(Layerwise, Optimizer):
    """Stochastic gradient descent with layer-wise second moments.

    For the weights `w` of a layer, with gradient `g`, learning rate `lr` and `weight_decay` `d`; `v` is one number for each
    layer:

        v = |g|^2 in the first step, then beta_2 * v + (1 - beta_2) * |g|^2
        m = beta_1 * m + g / (sqrt(v) + epsilon) + d * w
        w = w - lr * m

    Args:
        learning_rate: A float, a `keras.optimizers.schedules.LearningRateSchedule`, or a callable. Defaults to `0.01`.
        beta_1: Float. Defaults to `0.95`.
        beta_2: Float. Defaults to `0.98`.
        epsilon: Float. Defaults to `1e-8`.
        weight_decay: Float. Defaults to `None`: no decay.
        grad_averaging: Whether the term added to `beta_1 * m` is multiplied by `1 - beta_1`, as in Adam, from the second
            step on. Defaults to `False`.
        exclude_from_weight_decay: Regular expressions. A variable does not decay if one of them is found in its path.
            `["bias", "gamma", "beta"]` is usual. Defaults to `None`.
        name: Defaults to `"novograd"`.
        **kwargs: The other arguments of `keras.optimizers.Optimizer`.

    Raises:
        TypeError: If `exclude_from_weight_decay` is no list of strings.

    Reference:
        Ginsburg et al., "Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training of Deep Networks",
        2019, arXiv:1905.11286, algorithm 1.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        beta_1: float = 0.95,
        beta_2: float = 0.98,
        epsilon: float = 1e-8,
        weight_decay: float | None = None,
        grad_averaging: bool = False,
        exclude_from_weight_decay: Sequence[str] | None = None,
        name: str = "novograd",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, name=name, **kwargs)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.grad_averaging = grad_averaging
        self._exclude(weight_decay=exclude_from_weight_decay)

    def build(self, variables: Sequence[Any]) -> None:
        """Makes one slot and one scalar for each variable."""
        if not self.built:
            super().build(variables)
            self._momentums = [self.add_variable_from_reference(one, name="momentum") for one in variables]
            # HDF5 files hold slots by their names.
            self._velocities = [
                self.add_variable((), dtype=at_least_float32(one.dtype), name=f"{_flat_path(one)}_velocity")
                for one in variables
            ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """See `keras.optimizers.Optimizer.update_step`."""
        index, g, w, rate = self._prepared(gradient, variable, learning_rate)
        velocity, momentum = self._velocities[index], self._momentums[index]
        square = tf.square(norm(g))
        before = tf.convert_to_tensor(velocity)
        first = tf.equal(tf.convert_to_tensor(self.iterations), 0)
        after = tf.where(first, square, self.beta_2 * before + (1 - self.beta_2) * square)
        self.assign(velocity, after)
        step = g / tf.cast(tf.sqrt(after) + self.epsilon, w.dtype) + self._decay(index) * w
        if self.grad_averaging:
            step *= tf.where(first, tf.ones((), w.dtype), tf.constant(1 - self.beta_1, w.dtype))
        self.assign(momentum, self.beta_1 * tf.convert_to_tensor(momentum) + step)
        self.assign_sub(variable, rate * tf.convert_to_tensor(momentum))

    def get_config(self) -> dict[str, Any]:
        """See `keras.optimizers.Optimizer.get_config`."""
        own = {key: getattr(self, key) for key in ("beta_1", "beta_2", "epsilon", "grad_averaging")}
        return {**super().get_config(), **own}


def _flat_path(variable: Any) -> str:
    """The variable's path as Keras writes it into the names of slots."""
    return _compat.path(variable).replace("/", "_").replace(":", "_")
