"""Marks on reduced gradients, so that an optimizer does not reduce the results of a tape a second time."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfddl import _compat

_MARK = "_tfddl_reduced"
_LOCAL = "local"
_OWN = "_tfddl_own"
_SEARCH_LIMIT = 64
"""How many ops before each gradient are searched for a reduction by a tape. Clipping and scaling take about ten."""


def mark(gradient: Any, local: bool = False) -> Any:
    """Marks a gradient as reduced, or with `local` as not combined on purpose. Returns it."""
    value = _LOCAL if local else True
    setattr(_values(gradient), _MARK, value)
    setattr(gradient, _MARK, value)
    return gradient


def is_reduced(gradient: Any) -> bool:
    """Whether `gradient` is a result of `reduce_gradients` and has not been changed since."""
    return bool(getattr(gradient, _MARK, False))


def is_local(gradient: Any) -> bool:
    """Whether `gradient` is a local gradient that has been through `reduce_gradients`."""
    return getattr(gradient, _MARK, False) == _LOCAL


def leave_own(variables: Iterable[Any]) -> None:
    """Marks variables as local by the user's choice: ranks may have different values."""
    for variable in variables:
        setattr(_compat.tf_variable(variable), _OWN, True)


def is_own(variable: Any) -> bool:
    """Whether `leave_own` has been called with this `tf.Variable`."""
    return hasattr(variable, _OWN)


def all_reduced(gradients: Iterable[Any]) -> bool:
    """Whether there is at least one gradient, and all gradients are reduced. None counts as no gradient."""
    present = [gradient for gradient in gradients if gradient is not None]
    return bool(present) and all(is_reduced(gradient) for gradient in present)


def comes_from_a_reduction(gradients: Iterable[Any]) -> bool:
    """Whether a gradient in a graph was computed from reduced gradients, for example by clipping them.

    Searches only the nearest ops. Further away is the model, which may contain other reductions, for example for a
    gradient penalty.
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
