"""Gradients on their way from a tape to an optimizer, both ours: reduced once, not twice."""

from collections.abc import Sequence
from typing import Any

from tfddl.gradients import reduced_marks, reduction
from tfddl.keras.distributed import places
from tfddl.keras.distributed.adoption import Settings
from tfddl.ops.constants import Sum
from tfddl.runtime.log import warn_once


def reduce_as_set(
    settings: Settings, grads: Sequence[Any], variables: Sequence[Any] | None = None
) -> list[Any]:
    """Reduces the gradients that are not reduced yet, the way an optimizer is set to."""
    taken = places.unfiltered(variables) if variables else None
    everything: Sequence[Any] = list(grads)
    mine: Sequence[int] = range(len(everything))
    if taken is not None:
        variables, mine = taken
        everything = [None] * len(variables)
        for place, grad in zip(mine, grads, strict=True):
            everything[place] = grad
    reduced = reduction.reduce_missing(
        everything, variables, owner=settings.owner, options=settings.options, local=settings.local
    )
    return [reduced[place] for place in mine]


def reduce_overwritten(settings: Settings, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Combines what is not a gradient but the next value of a float8 layer's scales, at each call of `apply`."""
    if not any(map(reduction.is_overwritten, variables)):
        return list(grads)
    values = [
        grad if reduction.is_overwritten(variable) else None
        for grad, variable in zip(grads, variables, strict=True)
    ]
    values = reduce_as_set(settings, values, variables)
    return [grad if value is None else value for grad, value in zip(grads, values, strict=True)]


def complete(settings: Settings, grads: list[Any], variables: Sequence[Any] | None) -> list[Any]:
    """Makes gradients either all reduced or none.

    If a tape has reduced only some of them, the others are reduced now. With op=Sum, gradients that were
    computed from reduced ones would be summed twice, which a warning says where it can be seen.
    """
    if settings.options.op == Sum and reduced_marks.comes_from_a_reduction(grads):
        warn_once(
            "Gradients given to DistributedOptimizer(op=tfddl.Sum) were computed from gradients that a "
            "DistributedGradientTape has reduced, and are summed over the ranks a second time: use a plain "
            "tf.GradientTape or a plain optimizer."
        )
    pairs = zip(grads, variables or grads, strict=True)
    if not any(
        reduced_marks.is_reduced(grad) for grad, variable in pairs if not reduction.is_overwritten(variable)
    ):
        return grads
    return reduce_as_set(settings, grads, variables)
