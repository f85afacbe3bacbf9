"""Results of callbacks during `fit`, such as the best loss of an EarlyStopping: they go on with the training."""

import copy
import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfddl.keras.consistency.callback_list import LocalStepsCallback

_PLAIN = (bool, int, float, str, type(None), np.ndarray, np.generic)
# By id, which stays theirs as long as they are here: a callback may have no hash.
_first: dict[int, tuple[Any, dict[str, Any]]] = {}


class CallbackStates:
    """Attributes of callbacks that have changed since a `fit` began for the first time with them.

    Args:
        callbacks: Those of `fit`, in the moment when training begins. `LocalSGD` and `DiLoCo` are left out: a state holds
            what they exchange, and their attributes tell what this process has made.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = [each for each in callbacks if not isinstance(each, LocalStepsCallback)]
        for callback in self._callbacks:
            if id(callback) not in _first:
                _first[id(callback)] = callback, copy.deepcopy(_plain_attributes(callback))

    def changed(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The values that differ from the first ones, by the kind and number of the callback, and by name."""
        return {key: self.changed_of(callback) for key, callback in self._numbered()}

    @staticmethod
    def changed_of(callback: Any) -> dict[str, Any]:
        """The values of one callback that differ from the first ones."""
        first = _first[id(callback)][1]
        return {
            name: value
            for name, value in _plain_attributes(callback).items()
            if name not in first or not _equal(first[name], value)
        }

    def restore(self, changed: dict[tuple[str, int], dict[str, Any]]) -> None:
        """Sets what `changed` has returned, in this process or one before; the rest gets its first values again."""
        for key, callback in self._numbered():
            for name in self.changed_of(callback):
                if name in (first := _first[id(callback)][1]):
                    setattr(callback, name, copy.deepcopy(first[name]))
            for name, value in changed.get(key, {}).items():
                setattr(callback, name, copy.deepcopy(value))

    def _numbered(self) -> Iterator[tuple[tuple[str, int], Any]]:
        seen: Counter[str] = Counter()
        for callback in self._callbacks:
            # Rank 0 alone may have one of the class: without the metric its result could go to the next one.
            kind = f"{type(callback).__qualname__} {getattr(callback, 'monitor', '')}"
            yield (kind, seen[kind]), callback
            seen[kind] += 1


def _plain_attributes(callback: Any) -> dict[str, Any]:
    """The attributes with plain values, less those named like arguments of the constructor: these are settings.

    Keras changes the sign of EarlyStopping's `min_delta`, once for each process.
    """
    kinds: tuple[Any, ...] = type(callback).__mro__[:-1]
    settings = {name for kind in kinds for name in inspect.signature(kind.__init__).parameters}
    return {
        name: value for name, value in vars(callback).items() if name not in settings and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other) and np.array_equal(one, other)
