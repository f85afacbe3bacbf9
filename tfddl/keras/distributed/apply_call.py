"""One call of `apply`: the optimizer's variables, and which of their gradients are reduced already.

Keras calls the method in which an optimizer reduces with a list of gradients and nothing else, after it has dropped
the pairs without a gradient. Ranks that lack the gradients of different variables with one shape would then add up
gradients of different variables. So each call of `apply` makes an `ApplyCall`, which stays on the optimizer until
`apply` returns.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tfddl import _compat
from tfddl.gradients import reduced_marks, reduction
from tfddl.keras.distributed import loss_weight
from tfddl.keras.distributed.settings import Settings
from tfddl.ops.constants import Sum
from tfddl.runtime.log import warn_once

_CALL = "_tfddl_apply_call"


@dataclasses.dataclass
class ApplyCall:
    """One call of `apply` or `apply_gradients`.

    Attributes:
        settings: How the optimizer combines its gradients.
        variables: All variables of the call, also those without a gradient; None if unknown.
        slots: The slots (indices into `variables`) of the gradients that Keras passes on.
        reduced: Whether these gradients are reduced already.
        reached: Whether Keras has called the method that reduces.
    """

    settings: Settings
    variables: list[Any] | None
    slots: list[int]
    reduced: bool = False
    reached: bool = False

    def reduce(self, grads: Sequence[Any]) -> list[Any]:
        """Reduces the gradients of `slots`, except for marked ones, which are reduced already."""
        self.reached = True
        if self.reduced:
            return list(grads)
        everything: list[Any] = [None] * len(self.slots if self.variables is None else self.variables)
        for slot, grad in zip(self.slots, grads, strict=True):
            everything[slot] = grad
        results = _reduce_missing(self.settings, everything, self.variables)
        return [results[slot] for slot in self.slots]


def new(settings: Settings, grads: Sequence[Any], variables: Sequence[Any] | None) -> ApplyCall:
    """A call whose gradients are still to be reduced.

    Keras passes on neither a None nor the next value of a float8 variable. Without `variables` nothing has been dropped.
    """
    if variables is None:
        return ApplyCall(settings, None, list(range(len(grads))))
    slots = [
        slot
        for slot, (grad, variable) in enumerate(zip(grads, variables, strict=True))
        if grad is not None and not reduction.is_overwritten(variable)
    ]
    return ApplyCall(settings, list(variables), slots)


def start(
    settings: Settings, grads: Sequence[Any], variables: Sequence[Any], at_once: bool = False
) -> tuple[list[Any], ApplyCall]:
    """Begins a call of Keras 3: reduces the gradients that cannot wait for Keras.

    A float8 variable's next value cannot wait: Keras assigns it first. If a tape has reduced some gradients, the others
    are reduced here too, so that Keras gets either reduced gradients or unreduced ones, not both.

    Args:
        settings: The optimizer's.
        grads: Tensors, `tf.IndexedSlices` or None.
        variables: One for each gradient.
        at_once: Whether to reduce all gradients here.

    Returns:
        The gradients, and the call.
    """
    warn_of_a_second_sum(settings, grads)
    call = new(settings, grads, variables)
    at_once = at_once or any(reduced_marks.is_reduced(grads[slot]) for slot in call.slots)
    overwritten = [reduction.is_overwritten(variable) for variable in variables]
    if at_once:
        grads = _reduce_missing(settings, grads, variables)
    elif any(overwritten):
        values = [grad if is_value else None for grad, is_value in zip(grads, overwritten, strict=True)]
        values = _reduce_missing(settings, values, variables)
        grads = [grad if value is None else value for grad, value in zip(grads, values, strict=True)]
    call.reduced = at_once
    return list(grads), call


def current(optimizer: Any) -> ApplyCall | None:
    """The call under way of an optimizer, or of the one inside a LossScaleOptimizer; None outside of `apply`."""
    return vars(_compat.innermost(optimizer)).get(_CALL)


@contextmanager
def under_way(optimizer: Any, call: ApplyCall) -> Iterator[None]:
    """Makes `call` the current one of an optimizer, or of the one inside a LossScaleOptimizer."""
    attributes = vars(_compat.innermost(optimizer))
    before = attributes.get(_CALL)
    attributes[_CALL] = call
    try:
        yield
    finally:
        if before is None:
            del attributes[_CALL]
        else:
            attributes[_CALL] = before


def warn_of_a_second_sum(settings: Settings, grads: Sequence[Any]) -> None:
    """With op=Sum, gradients that were computed from reduced gradients are summed over the ranks twice."""
    if settings.options.op == Sum and reduced_marks.comes_from_a_reduction(grads):
        warn_once(
            "Gradients given to DistributedOptimizer(op=tfddl.Sum) were computed from gradients that a "
            "DistributedGradientTape has reduced, and are summed over the ranks a second time: use a plain "
            "tf.GradientTape or a plain optimizer."
        )


def check_global_norm(
    optimizer: Any, settings: Settings, grads: Sequence[Any], variables: Sequence[Any]
) -> None:
    """Refuses a norm over local gradients, which differs by rank and would make all weights differ.

    Raises:
        ValueError: If the optimizer has a `global_clipnorm` and one of the variables is local.
    """
    local = any(map(reduced_marks.is_local, grads)) or settings.local.among(variables)
    if local and optimizer.global_clipnorm:
        raise ValueError(
            "global_clipnorm cannot go with local variables, whose gradients differ by rank: use clipnorm or clipvalue. "
            f"Received: global_clipnorm={optimizer.global_clipnorm!r}"
        )


def _reduce_missing(settings: Settings, grads: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
    options = loss_weight.options_under_way(settings.options)
    return reduction.reduce_missing(
        grads, variables, owner=settings.owner, options=options, local=settings.local
    )
