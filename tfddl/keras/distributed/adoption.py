"""Adoption: giving an optimizer that exists already another class, without anyone noticing.

A distributed optimizer *is* the user's optimizer: same object, same variables, same iteration. Only its
class changes, to a subclass made once for each optimizer class. `__class__` goes on saying the original
one, because that is what Keras writes into a saved model, which therefore loads where tfddl is not
installed.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from tfddl import _compat
from tfddl.gradients.gradient_options import Options
from tfddl.gradients.local_sources import LocalSources, check_variable
from tfddl.ops import names
from tfddl.runtime.process_sets import id_of

_SETTINGS = "_tfddl_settings"
_BASE = "_tfddl_base"
_adopted_classes: dict[tuple[type, type], type] = {}


@dataclasses.dataclass
class Settings:
    """How one optimizer combines its gradients.

    Attributes:
        name: First part of the reduction's name.
        options: How to combine.
        backward_passes_per_step: How many calls of `apply` make an update; 1 leaves that to the optimizer.
        average_aggregated_gradients: Whether the update sees the mean of their gradients; else the sum.
        local: Variables and layers whose gradients stay each rank's own.
        done: True while the optimizer is given gradients that are reduced already.
        asked: Whether the optimizer has come to its reduction during the call of `apply` under way.
        variables: What the gradients of that reduction belong to.
    """

    name: str = "DistributedOptimizer"
    options: Options = dataclasses.field(default_factory=Options)
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    local: LocalSources = dataclasses.field(default_factory=LocalSources)
    done: bool = False
    asked: bool = False
    variables: list[Any] | None = None
    _owner: str | None = None

    @property
    def owner(self) -> str:
        """The name that tells this optimizer's reductions from another's.

        Counted at the first reduction, which all ranks take part in, and not when the optimizer is made: one
        rank alone may copy an optimizer, to save it for example.
        """
        if self._owner is None:
            number = id_of(self.options.process_set, self.name)
            self._owner = names.new_owner(self.name, number)
        return self._owner

    def chosen(self) -> dict[str, Any]:
        """What the user has asked for, except for the name, by argument of `DistributedOptimizer`."""
        options = {
            field.name: getattr(self.options, field.name) for field in dataclasses.fields(self.options)
        }
        return {
            **options,
            "backward_passes_per_step": self.backward_passes_per_step,
            "average_aggregated_gradients": self.average_aggregated_gradients,
        }

    def fresh(self, local: LocalSources | None = None) -> "Settings":
        """The settings for another optimizer, which may share what is local."""
        return Settings(
            self.name,
            self.options,
            self.backward_passes_per_step,
            self.average_aggregated_gradients,
            local or self.local.copy(),
        )


class Adopted:
    """What every adopted class has in front of the user's class."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The user's class: what serialization reads."""
        return getattr(type(self), _BASE)

    def register_local_var(self, variable: Any) -> None:
        """Leaves the gradient of one variable to each rank: see `tfddl.PartialDistributedOptimizer`."""
        settings_of(self).local.add(check_variable(variable))

    def __reduce__(self) -> Any:
        """Pickles and copies as Keras does, and adopts what comes out of it."""
        plain: Any = super()
        function, arguments = plain.__reduce__()[:2]
        if getattr(function, "__self__", None) is type(self):
            # A class method of the adopted class, which pickle would not find: it has the name of the user's.
            function = getattr(self.__class__, function.__name__)
        return _restore, (function, arguments, settings_of(self).fresh())


def adopt(optimizer: Any, mixin: type[Adopted]) -> None:
    """Puts `mixin` in front of the optimizer's class, in place."""
    base = type(optimizer)
    made = _adopted_classes.get((base, mixin))
    if made is None:
        marks = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
        made = type(base.__name__, (mixin, base), {**marks, _BASE: base})
        _adopted_classes[base, mixin] = made
    object.__setattr__(optimizer, "__class__", made)


def is_adopted(optimizer: Any) -> bool:
    """Whether `adopt` has been called on the optimizer."""
    return isinstance(type(optimizer), type) and issubclass(type(optimizer), Adopted)


def settings_of(optimizer: Any) -> Settings:
    """The settings of a distributed optimizer; for a loss scale optimizer those of the one inside."""
    return vars(_compat.innermost(optimizer))[_SETTINGS]


def passes_of(optimizer: Any) -> int:
    """How many batches make an update."""
    inner = _compat.innermost(optimizer)
    if _compat.is_keras_2() and is_adopted(inner):
        return settings_of(inner).backward_passes_per_step
    return getattr(inner, "gradient_accumulation_steps", None) or 1


def set_settings(optimizer: Any, settings: Settings) -> None:
    """Gives the optimizer its settings, past Keras' tracking of attributes."""
    vars(optimizer)[_SETTINGS] = settings


def _restore(function: Callable[..., Any], arguments: tuple[Any, ...], settings: Settings) -> Any:
    """Rebuilds a pickled or copied optimizer."""
    from tfddl.keras.optimizer import distribute

    return distribute(function(*arguments), settings)
