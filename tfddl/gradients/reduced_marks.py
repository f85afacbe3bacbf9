"""Marks on gradients that are reduced already, so that an optimizer behind a tape leaves them alone."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfddl import _compat

_MARK = "_tfddl_reduced"
_LOCAL = "local"
_OWN = "_tfddl_own"
_SEARCH_LIMIT = 64
"""Ops looked at behind each gradient for a reduction by a tape: clipping and scaling need about ten."""


def mark(gradient: Any, local: bool = False) -> Any:
    """Marks a gradient as reduced, or as one that stays this rank's own."""
    value = _LOCAL if local else True
    setattr(_values(gradient), _MARK, value)
    setattr(gradient, _MARK, value)
    return gradient


def is_reduced(gradient: Any) -> bool:
    """Whether `gradient` is a result of `reduce_gradients`, untouched since."""
    return bool(getattr(gradient, _MARK, False))


def is_local(gradient: Any) -> bool:
    """Whether it is one that `reduce_gradients` has left to each rank."""
    return getattr(gradient, _MARK, False) == _LOCAL


def leave_own(variables: Iterable[Any]) -> None:
    """Marks variables that each rank trains for itself because the user has said so."""
    for variable in variables:
        setattr(_compat.tf_variable(variable), _OWN, True)


def is_own(variable: Any) -> bool:
    """Whether `leave_own` has been called with a `tf.Variable`."""
    return hasattr(variable, _OWN)


def all_reduced(gradients: Iterable[Any]) -> bool:
    """Whether there are gradients and none of them still needs a reduction."""
    present = [gradient for gradient in gradients if gradient is not None]
    return bool(present) and all(is_reduced(gradient) for gradient in present)


def comes_from_a_reduction(gradients: Iterable[Any]) -> bool:
    """Whether a gradient in a graph was computed from reduced ones, by clipping them for example.

    Looks only at the nearest ops: far behind a gradient lies the whole model, which may hold reductions of
    its own, such as those of a gradient penalty.
    """
    return any(
        _reduction_nearby(gradient)
        for gradient in map(_values, gradients)
        if tf.is_symbolic_tensor(gradient) and not is_reduced(gradient)
    )


def _reduction_nearby(gradient: tf.Tensor) -> bool:
    queue, seen = [gradient], {id(gradient)}
    for _ in range(_SEARCH_LIMIT):
        if not queue:
            return False
        tensor = queue.pop(0)
        if is_reduced(tensor):
            return True
        for source in tensor.op.inputs:
            if id(source) not in seen:
                seen.add(id(source))
                queue.append(source)
    return False


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
