"""Local variables: each rank's own, whose gradients are not combined."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfddl import _compat


class LocalSources:
    """What an optimizer or a tape leaves to each rank: variables, and layers with all their trainable ones."""

    def __init__(self) -> None:
        self._references: dict[Any, None] = {}
        self._layers: list[Any] = []

    def add(self, source: Any) -> None:
        """Leaves one variable, or one tensor that a tape watches, to each rank."""
        self._references[_compat.reference(source)] = None

    def add_layers(self, layers: Iterable[Any]) -> None:
        """Leaves the trainable weights of layers to each rank; those that are not built yet as well."""
        self._layers += layers

    def copy(self) -> LocalSources:
        """Another one with the same sources."""
        other = LocalSources()
        other._references, other._layers = dict(self._references), list(self._layers)
        return other

    def among(self, sources: Iterable[Any] | None) -> set[int]:
        """Which of the sources are local, by their place."""
        if not self._references and not self._layers:
            return set()
        mine = set(self._references)
        mine.update(_compat.reference(v) for layer in self._layers for v in layer.trainable_weights)
        return {place for place, source in enumerate(sources or ()) if _compat.reference(source) in mine}


def scaled(gradient: Any, size: int) -> Any:
    """A rank's own gradient, as a part of the mean over all ranks' rows."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(scaled(gradient.values, size), gradient.indices, gradient.dense_shape)
    gradient = tf.convert_to_tensor(gradient)
    return gradient / tf.cast(size, gradient.dtype)


def check_variable(variable: Any) -> Any:
    """Returns `variable` if it is one.

    Raises:
        ValueError: If it is not.
    """
    if not _compat.is_variable(variable):
        raise ValueError(
            f"register_local_var takes one variable of Keras or TensorFlow. Received: {variable!r}"
        )
    return variable


def check_layers(layers: Any) -> list[Any]:
    """Returns `local_layers` as a list.

    Args:
        layers: One layer, several, or None.

    Raises:
        ValueError: If that is something else.
    """
    listed = [] if layers is None else list(layers) if isinstance(layers, (list, tuple)) else [layers]
    if not all(map(_compat.is_layer, listed)):
        raise ValueError(
            f"local_layers is a Keras layer or a list of them. Received: local_layers={layers!r}"
        )
    return listed
