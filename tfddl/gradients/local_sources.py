"""Local variables and layers: their gradients are not combined, so each rank has its own values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfddl import _compat


class LocalSources:
    """The variables and layers whose gradients an optimizer or a tape does not combine."""

    def __init__(self) -> None:
        self._references: dict[Any, None] = {}
        self._layers: list[Any] = []

    def add(self, source: Any) -> None:
        """Adds one variable, or one tensor that a tape watches."""
        self._references[_compat.reference(source)] = None

    def add_layers(self, layers: Iterable[Any]) -> None:
        """Adds the trainable weights of layers, which may be built later."""
        self._layers += layers

    def copy(self) -> LocalSources:
        """Returns a copy with the same sources."""
        other = LocalSources()
        other._references, other._layers = dict(self._references), list(self._layers)
        return other

    def has_any(self) -> bool:
        """Whether there is a local variable or layer."""
        return bool(self._references or self._layers)

    def among(self, sources: Iterable[Any] | None) -> set[int]:
        """Returns the slots of the sources that are local."""
        if not self.has_any():
            return set()
        mine = set(self._references)
        mine.update(_compat.reference(v) for layer in self._layers for v in layer.trainable_weights)
        return {slot for slot, source in enumerate(sources or ()) if _compat.reference(source) in mine}


def scaled(gradient: Any, size: int | tf.Tensor) -> Any:
    """Divides a local gradient by the number of ranks: its share in the mean over the rows of all ranks."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(scaled(gradient.values, size), gradient.indices, gradient.dense_shape)
    gradient = tf.convert_to_tensor(gradient)
    return gradient / tf.cast(size, gradient.dtype)


def check_variable(variable: Any) -> Any:
    """Returns `variable` if it is a variable.

    Raises:
        ValueError: If it is not a variable.
    """
    if not _compat.is_variable(variable):
        raise ValueError(
            "register_local_var takes one variable of Keras or TensorFlow: call it for each variable. "
            f"Received: {variable!r}"
        )
    return variable


def check_layers(layers: Any) -> list[Any]:
    """Returns `local_layers` as a list.

    Args:
        layers: One layer, several, or None.

    Raises:
        ValueError: If `layers` is something else.
    """
    listed = [] if layers is None else list(layers) if isinstance(layers, (list, tuple)) else [layers]
    if not all(map(_compat.is_layer, listed)):
        raise ValueError(
            "local_layers is a Keras layer or a list of them: pass the layers themselves, not names or variables. "
            f"Received: local_layers={layers!r}"
        )
    return listed
