"""The settings of one distributed optimizer: configuration only, nothing about the call under way."""

import dataclasses
from typing import Any

from tfddl import _compat
from tfddl.gradients.gradient_options import GradientOptions
from tfddl.gradients.local_sources import LocalSources
from tfddl.ops import names
from tfddl.runtime.process_sets import id_of

SETTINGS = "_tfddl_settings"


@dataclasses.dataclass
class Settings:
    """How one optimizer combines its gradients.

    Attributes:
        name: First part of the reduction's name.
        options: How to combine.
        backward_passes_per_step: How many calls of `apply` make an update; 1 leaves the number to the optimizer.
        average_aggregated_gradients: Whether the update sees the mean of their gradients; else the sum.
        sharded: Whether each rank holds one slice of the optimizer's state.
        local: Variables and layers whose gradients are not combined.
    """

    name: str = "DistributedOptimizer"
    options: GradientOptions = dataclasses.field(default_factory=GradientOptions)
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    sharded: bool = False
    local: LocalSources = dataclasses.field(default_factory=LocalSources)
    _owner: str | None = None

    @property
    def owner(self) -> str:
        """The name that tells this optimizer's reductions from another optimizer's.

        It is numbered at the first reduction, in which all ranks take part. One rank alone may copy an optimizer, for
        example to save it, so the number cannot come from the constructor.
        """
        if self._owner is None:
            number = id_of(self.options.process_set, self.name)
            self._owner = names.new_owner(self.name, number)
        return self._owner

    def chosen(self) -> dict[str, Any]:
        """The user's choices without the name, by argument of `DistributedOptimizer`."""
        return {
            **vars(self.options),
            "backward_passes_per_step": self.backward_passes_per_step,
            "average_aggregated_gradients": self.average_aggregated_gradients,
            "sharded": self.sharded,
        }

    def fresh(self, local: LocalSources | None = None) -> "Settings":
        """The settings for another optimizer; `local` is shared with it if given, else copied."""
        return dataclasses.replace(self, local=local or self.local.copy(), _owner=None)


def settings_of(optimizer: Any) -> Settings:
    """The settings of a distributed optimizer; a LossScaleOptimizer has those of the optimizer inside it."""
    return vars(_compat.innermost(optimizer))[SETTINGS]


def set_settings(optimizer: Any, settings: Settings) -> None:
    """Gives the optimizer its settings. Keras does not track the attribute."""
    vars(optimizer)[SETTINGS] = settings
