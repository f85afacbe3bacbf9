"""What optimizers have in common that look at a whole layer's weights: weight decay inside the update, and exclusions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class Layerwise:
    """In front of `keras.optimizers.Optimizer`: `weight_decay` is part of the update rule, and not applied before it.

    Attributes:
        excluded: Patterns of variables to exclude, by what from: `"weight_decay"` or `"layer_adaptation"`.
    """

    excluded: dict[str, list[str]]
    _flags: list[tuple[bool, bool]]

    def _exclude(self, **patterns: Sequence[str] | None) -> None:
        """Keeps the patterns of the constructor.

        Raises:
            TypeError: If one of them is no list of strings.
        """
        for what, found in patterns.items():
            if isinstance(found, str) or not all(isinstance(pattern, str) for pattern in found or ()):
                raise TypeError(
                    f"exclude_from_{what} takes a list of regular expressions for paths of variables, as ['bias']. "
                    f"Received: exclude_from_{what}={found!r}"
                )
        self.excluded = {what: list(found or ()) for what, found in patterns.items()}

    def build(self, variables: Sequence[Any]) -> None:
        """Decides for each variable, once, whether it decays and whether its step is scaled."""
        plain: Any = super()
        if getattr(self, "built", False):
            return
        plain.build(variables)
        # Here variables have paths; `update_step` is given those of TensorFlow.
        self._flags = [
            (
                plain._use_weight_decay(variable) and not self._matches("weight_decay", variable),
                not self._matches("layer_adaptation", variable),
            )
            for variable in variables
        ]

    def _matches(self, what: str, variable: Any) -> bool:
        path = getattr(variable, "path", variable.name)
        return any(re.search(pattern, path) for pattern in self.excluded.get(what, ()))

    def _apply_weight_decay(self, variables: Any) -> None:
        """Leaves it to the update rule."""

    def _prepared(
        self, gradient: Any, variable: Any, learning_rate: Any
    ) -> tuple[int, tf.Tensor, tf.Tensor, tf.Tensor]:
        """The number of the variable; gradient, value and learning rate in its dtype. The norm of a `tf.IndexedSlices`
        is known once its rows are added up."""
        me: Any = self
        dtype = variable.dtype
        gradient = tf.cast(tf.convert_to_tensor(gradient), dtype)
        value = tf.convert_to_tensor(variable)
        return me._get_variable_index(variable), gradient, value, tf.cast(learning_rate, dtype)

    def _decay(self, index: int) -> float:
        """The weight decay of a variable."""
        me: Any = self
        return float(me.weight_decay or 0.0) if self._flags[index][0] else 0.0

    def _adapts(self, index: int) -> bool:
        """Whether a variable's step is scaled by norms."""
        return self._flags[index][1]

    def get_config(self) -> dict[str, Any]:
        """See `keras.optimizers.Optimizer.get_config`."""
        plain: Any = super()
        return {
            **plain.get_config(),
            **{f"exclude_from_{what}": list(found) for what, found in self.excluded.items()},
        }


def norm(tensor: tf.Tensor) -> tf.Tensor:
    """The 2-norm of all elements, computed in float32 at least: the square of a float16 number may be none."""
    wide = tf.cast(tensor, tf.float32) if tensor.dtype in (tf.float16, tf.bfloat16) else tensor
    return tf.sqrt(tf.reduce_sum(tf.square(wide)))


def ratio_of(numerator: tf.Tensor, denominator: tf.Tensor, dtype: Any, factor: float = 1.0) -> tf.Tensor:
    """`factor * numerator / denominator`; 1 where either is zero, as before the first step of weights that start there."""
    usable = (numerator > 0) & (denominator > 0)
    safe = tf.where(usable, denominator, tf.ones_like(denominator))
    return tf.cast(tf.where(usable, factor * numerator / safe, tf.ones_like(safe)), dtype)
