"""Which variable a gradient belongs to, by its place among all that the user has given.

Keras drops pairs without a gradient before an optimizer gets to combine the others. Ranks that lack the gradients of
different variables of one shape would then add them up crosswise.
"""

import functools
import importlib
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

_last = threading.local()


def remember(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Keeps in mind the variables of one call of `apply_gradients`, and which of them have a gradient.

    A LossScaleOptimizer hands on only the pairs with a gradient: for those the call before it is the user's.
    """
    pairs = list(pairs)
    if all(grad is not None for grad, _ in pairs) and unfiltered([variable for _, variable in pairs]):
        return
    _last.variables = [weakref.ref(variable) for _, variable in pairs]
    _last.places = [place for place, (grad, _) in enumerate(pairs) if grad is not None]


def unfiltered(variables: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
    """What these variables have been taken from.

    Args:
        variables: Those with a gradient.

    Returns:
        All variables of the user's list, and the places of `variables` in it. None if they come from elsewhere.
    """
    everything = [reference() for reference in getattr(_last, "variables", ())]
    places: list[int] = getattr(_last, "places", [])
    alive = all(variable is not None for variable in everything)
    if not alive or len(places) != len(variables):
        return None
    same = all(everything[place] is variable for place, variable in zip(places, variables, strict=True))
    return (everything, places) if same and places else None


@functools.cache
def watch_keras_2() -> None:
    """Looks at what Keras 2 drops: a LossScaleOptimizer, which may be wrapped around ours, asks us only after that."""
    package = tf.keras.optimizers.Optimizer.__module__.rpartition(".")[0]
    utilities: Any = importlib.import_module(f"{package}.utils")
    plain = utilities.filter_empty_gradients

    @functools.wraps(plain)
    def filter_empty_gradients(grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        pairs = tuple(grads_and_vars)
        remember(pairs)
        return plain(pairs)

    utilities.filter_empty_gradients = filter_empty_gradients
