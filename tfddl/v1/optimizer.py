"""`DistributedOptimizer` for a `tf.compat.v1.train.Optimizer`."""

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl import _graphs
from tfddl.gradients import reduced_marks, reduction
from tfddl.gradients.gradient_options import GradientOptions
from tfddl.ops import names
from tfddl.runtime.log import warn_once
from tfddl.runtime.process_sets import id_of
from tfddl.v1 import reminder
from tfddl.v1.accumulation import Accumulation

v1 = tf.compat.v1
_SETTINGS = "_tfddl_settings"
_made: dict[type, type] = {}


@dataclasses.dataclass(eq=False)
class Settings:
    """How one optimizer combines its gradients.

    Attributes:
        name: The first part of the reduction's name.
        options: How to combine.
        accumulation: Adds up the gradients of several passes; None for one pass.
        computed: Where `compute_gradients` has been called, which returns reduced gradients: see `place`.
    """

    name: str
    options: GradientOptions
    accumulation: Accumulation | None
    computed: weakref.WeakSet[Any] = dataclasses.field(default_factory=weakref.WeakSet)
    _owner: str | None = None

    def place(self) -> Any:
        """The outermost graph that is being built; in eager mode, which builds none, these settings."""
        graphs = _graphs.being_built()
        return graphs[-1] if graphs else self

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduces the gradients that are not reduced yet."""
        if self._owner is None:
            number = id_of(self.options.process_set, self.name)
            self._owner = names.new_owner(self.name, number)
        return reduction.reduce_missing(gradients, variables, owner=self._owner, options=self.options)

    def chosen(self) -> tuple[Any, ...]:
        """The user's choices without the name."""
        passes = self.accumulation and (self.accumulation.passes, self.accumulation.average)
        return self.options, passes


def distribute(
    optimizer: Any,
    name: str,
    options: GradientOptions,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
) -> Any:
    """Makes an optimizer of TF1 combine its gradients over all ranks, and returns the same object.

    `compute_gradients`, and so `minimize`, returns reduced gradients, which you may clip before `apply_gradients`.
    `apply_gradients` reduces the gradients of `tf.gradients` or a `tf.GradientTape` if `compute_gradients` has not been
    called in the same graph or `tf.function`; in eager mode, not since the last `apply_gradients`. After
    `compute_gradients` other gradients in the graph stay the rank's own, and a warning names them.

    Args:
        optimizer: A `tf.compat.v1.train.Optimizer`.
        name: The first part of the reduction's name.
        options: How to combine.
        backward_passes_per_step: See `tfddl.DistributedOptimizer`.
        average_aggregated_gradients: See `tfddl.DistributedOptimizer`.

    Returns:
        `optimizer` itself, unchanged if it is distributed already with the same settings.

    Raises:
        ValueError: It is distributed already with other settings.
    """
    accumulation = None
    if backward_passes_per_step > 1:
        accumulation = Accumulation(
            backward_passes_per_step, average_aggregated_gradients, options.sparse_as_dense
        )
    settings = Settings(name, options, accumulation)
    present = vars(optimizer).get(_SETTINGS)
    if present is not None:
        if present.chosen() != settings.chosen():
            raise ValueError(
                "This optimizer is distributed already, with other settings: call DistributedOptimizer once. "
                f"Received: optimizer={optimizer!r}"
            )
        return optimizer
    base = type(optimizer)
    if base not in _made:
        parts = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
        _made[base] = type(base.__name__, (_Distributed, base), parts)
    optimizer.__class__ = _made[base]
    vars(optimizer)[_SETTINGS] = settings
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether `distribute` has been called on an optimizer of TF1."""
    return _SETTINGS in vars(optimizer)


class _Distributed:
    """The methods that replace those of the user's class."""

    def compute_gradients(self, *arguments: Any, **options: Any) -> list[tuple[Any, Any]]:
        """See `tf.compat.v1.train.Optimizer.compute_gradients`."""
        plain: Any = super()
        settings: Settings = vars(self)[_SETTINGS]
        settings.computed.add(settings.place())
        gradients, variables = _unzip(plain.compute_gradients(*arguments, **options))
        if settings.accumulation is None:
            gradients = settings.reduce(gradients, variables)
        else:
            gradients = settings.accumulation.reduce(gradients, variables, settings.reduce)
        return list(zip(gradients, variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, *arguments: Any, **options: Any
    ) -> Any:
        """See `tf.compat.v1.train.Optimizer.apply_gradients`."""
        plain: Any = super()
        settings: Settings = vars(self)[_SETTINGS]
        reminder.watch()
        gradients, variables = _unzip(grads_and_vars)
        if settings.accumulation is not None:
            pairs = list(zip(gradients, variables, strict=True))
            return settings.accumulation.apply(
                lambda: plain.apply_gradients(pairs, global_step, *arguments, **options), global_step
            )
        if settings.place() in settings.computed:
            _warn_of_unreduced(gradients, variables, settings)
        else:
            waiting = [None if reduced_marks.comes_from_a_reduction([each]) else each for each in gradients]
            reduced = settings.reduce(waiting, variables)
            gradients = [new if new is not None else old for new, old in zip(reduced, gradients, strict=True)]
        if tf.executing_eagerly():
            settings.computed.discard(settings)
        pairs = list(zip(gradients, variables, strict=True))
        return plain.apply_gradients(pairs, global_step, *arguments, **options)


def _warn_of_unreduced(gradients: Sequence[Any], variables: Sequence[Any], settings: Settings) -> None:
    """Warns of gradients of a graph that are not computed from the results of `compute_gradients`."""
    if settings.options.process_set.included() is False:
        return
    own = [
        variable.name
        for gradient, variable in zip(gradients, variables, strict=True)
        if gradient is not None
        and tf.is_symbolic_tensor(getattr(gradient, "values", gradient))
        and not (reduced_marks.is_reduced(gradient) or reduced_marks.comes_from_a_reduction([gradient]))
    ]
    if own:
        warn_once(
            "Gradients given to apply_gradients() do not come from this optimizer's compute_gradients(), which has been "
            "called before, and are not reduced: compute all with compute_gradients(), or use an optimizer of its own for "
            f"those of tf.gradients. Received: gradients of {', '.join(own)}"
        )


def _unzip(pairs: Any) -> tuple[list[Any], list[Any]]:
    pairs = list(pairs)
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
