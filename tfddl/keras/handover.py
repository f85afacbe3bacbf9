"""Gradients on their way from a tape to an optimizer, both ours: reduced once, not twice."""

from collections.abc import Sequence
from typing import Any

from tfddl.gradients import reduction
from tfddl.keras.adoption import Settings
from tfddl.keras.log import warn_once
from tfddl.ops.constants import Sum


def reduce_as_set(
    settings: Settings, grads: Sequence[Any], variables: Sequence[Any] | None = None
) -> list[Any]:
    """Reduces the gradients that are not reduced yet, the way an optimizer is set to."""
    return reduction.reduce_missing(
        grads,
        variables,
        owner=settings.owner,
        op=settings.op,
        compression=settings.compression,
        process_set=settings.process_set,
    )


def complete(settings: Settings, grads: list[Any], variables: Sequence[Any] | None) -> list[Any]:
    """Makes gradients either all reduced or none.

    If a tape has reduced only some of them, the others are reduced now. With op=Sum, gradients that were
    computed from reduced ones would be summed twice, which a warning says where it can be seen.
    """
    if settings.op == Sum and reduction.comes_from_a_reduction(grads):
        warn_once(
            "Gradients given to DistributedOptimizer(op=tfddl.Sum) were computed from gradients that a "
            "DistributedGradientTape has reduced, and are summed over the ranks a second time: use a plain "
            "tf.GradientTape or a plain optimizer."
        )
    if not any(reduction.is_reduced(grad) for grad in grads):
        return grads
    return reduce_as_set(settings, grads, variables)
