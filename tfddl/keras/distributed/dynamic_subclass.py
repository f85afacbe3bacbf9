"""A dynamic subclass: an existing optimizer gets another class.

A distributed optimizer *is* the user's optimizer: same object, same variables, same iteration. Only its class changes,
to a subclass that is made once for each optimizer class. `__class__` still returns the original class. Keras writes
that class into a saved model, so the model loads in a process without tfddl.

`patches.py` lists the methods that these subclasses override.
"""

from typing import Any

from tfddl import _compat
from tfddl.gradients.local_sources import check_variable
from tfddl.keras.distributed.settings import settings_of

_BASE = "_tfddl_base"
_subclasses: dict[tuple[type, type], type] = {}


class DynamicSubclass:
    """The base of all classes that are put in front of an optimizer's own class."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The user's class, for serialization."""
        return base_class(self)

    @classmethod
    def from_config(cls, config: dict[str, Any], **options: Any) -> Any:
        """See `keras.optimizers.Optimizer.from_config`: a plain optimizer, since no configuration says how to combine."""
        return getattr(cls, _BASE).from_config(config, **options)

    def register_local_var(self, variable: Any) -> None:
        """Excludes one variable's gradient from combining: see `tfddl.PartialDistributedOptimizer`."""
        settings_of(self).local.add(check_variable(variable))


def subclass(optimizer: Any, mixin: type[DynamicSubclass], **methods: Any) -> None:
    """Puts `mixin` in front of the optimizer's class, in place; `methods` go in front of both."""
    base = type(optimizer)
    made = _subclasses.get((base, mixin))
    if made is None:
        names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
        made = type(base.__name__, (mixin, base), {**names, **methods, _BASE: base})
        _subclasses[base, mixin] = made
    set_class(optimizer, made)


def set_class(optimizer: Any, kind: type) -> None:
    """Changes the class of an object, also where `__class__` is a property of its class."""
    vars(object)["__class__"].__set__(optimizer, kind)


def base_class(optimizer: Any) -> type:
    """The class that a subclassed optimizer had before."""
    base: type = getattr(type(optimizer), _BASE)
    return base


def has_own(optimizer: Any, method: str) -> bool:
    """Whether a class that is not Keras' defines this method of a subclassed optimizer."""
    return not _compat.comes_with_keras(getattr(base_class(optimizer), method))


def is_subclassed(optimizer: Any) -> bool:
    """Whether `subclass` has been called on the optimizer."""
    return issubclass(type(optimizer), DynamicSubclass)
