"""The common part of layer-wise optimizers: weight decay inside the update, and excluded variables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat


class Layerwise:
    """A base in front of `keras.optimizers.Optimizer`, with `weight_decay` as a part of the update rule.

    Attributes:
        excluded: Patterns for the paths of excluded variables, by rule: `"weight_decay"` or `"layer_adaptation"`.
    """

    excluded: dict[str, list[str]]
    _flags: list[tuple[bool, bool]]

    def _exclude(self, **patterns: Sequence[str] | None) -> None:
        """Keeps the patterns of the constructor.

        Raises:
            TypeError: If one of them is no list of strings.
        """
        for rule, found in patterns.items():
            if isinstance(found, str) or not all(isinstance(pattern, str) for pattern in found or ()):
                raise TypeError(
                    f"exclude_from_{rule} takes regular expressions for paths of variables: pass a list, as ['bias']. "
                    f"Received: exclude_from_{rule}={found!r}"
                )
        self.excluded = {rule: list(found or ()) for rule, found in patterns.items()}

    def build(self, variables: Sequence[Any]) -> None:
        """Decides for each variable, once, whether it decays and whether its step is scaled."""
        plain: Any = super()
        if getattr(self, "built", False):
            return
        plain.build(variables)
        # Decided here, where variables have paths: `update_step` gets TensorFlow's variables.
        self._flags = [
            (
                plain._use_weight_decay(variable) and not self._matches("weight_decay", variable),
                not self._matches("layer_adaptation", variable),
            )
            for variable in variables
        ]

    def _matches(self, rule: str, variable: Any) -> bool:
        return any(re.search(pattern, _compat.path(variable)) for pattern in self.excluded.get(rule, ()))

    def _apply_weight_decay(self, variables: Any) -> None:
        """Does nothing: the update rule decays."""

    def _prepared(
        self, gradient: Any, variable: Any, learning_rate: Any
    ) -> tuple[int, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the variable's index; and gradient, value and learning rate in its dtype.

        A `tf.IndexedSlices` becomes dense: its norm needs the sum of equal rows.
        """
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
        """Whether the variable's step is scaled by norms."""
        return self._flags[index][1]

    def get_config(self) -> dict[str, Any]:
        """See `keras.optimizers.Optimizer.get_config`."""
        plain: Any = super()
        return {
            **plain.get_config(),
            **{f"exclude_from_{rule}": list(found) for rule, found in self.excluded.items()},
        }


def at_least_float32(dtype: Any) -> str:
    """The name of a dtype; float32 in place of a narrower one."""
    name: str = tf.as_dtype(dtype).name
    return "float32" if name in ("float16", "bfloat16") else name


def norm(tensor: tf.Tensor) -> tf.Tensor:
    """The 2-norm of all elements, in float32 or wider: the square of a float16 number may overflow or be 0."""
    wide = tf.cast(tensor, at_least_float32(tensor.dtype))
    return tf.sqrt(tf.reduce_sum(tf.square(wide)))


def ratio_of(numerator: tf.Tensor, denominator: tf.Tensor, dtype: Any, factor: float = 1.0) -> tf.Tensor:
    """`factor * numerator / denominator`; 1 if either is zero, as for weights that start at zero."""
    usable = (numerator > 0) & (denominator > 0)
    safe = tf.where(usable, denominator, tf.ones_like(denominator))
    return tf.cast(tf.where(usable, factor * numerator / safe, tf.ones_like(safe)), dtype)
