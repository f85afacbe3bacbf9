"""Optimizers of TensorFlow Addons around distributed ones: which combinations combine gradients, and which do not."""

from typing import Any, NoReturn

from tfddl import _compat
from tfddl.keras.distributed.dynamic_subclass import is_subclassed
from tfddl.keras.keras2 import optimizer_state


def has_distributed_members(optimizer: Any) -> bool:
    """Whether the optimizer is a MultiOptimizer of TensorFlow Addons with a distributed optimizer in it."""
    return any(_distributed_members(optimizer))


def check_members(optimizer: Any) -> None:
    """Checks that a MultiOptimizer of TensorFlow Addons combines all gradients, or none.

    Raises:
        ValueError: If only some of its members are distributed; or if the members are distributed but the MultiOptimizer
            is not, inside a LossScaleOptimizer.
    """
    inner = _compat.innermost(optimizer)
    members = _distributed_members(inner)
    if is_subclassed(inner) or not any(members):
        return
    if not all(members):
        missing = [number for number, distributed in enumerate(members) if not distributed]
        raise ValueError(
            "Some members of a MultiOptimizer are not distributed, and each rank would train their layers on its own: "
            "give the MultiOptimizer to tfddl.DistributedOptimizer, or every member. "
            f"Received: of {len(members)} members, numbers {missing} (from 0) not distributed"
        )
    if inner is not optimizer:
        raise ValueError(
            "A LossScaleOptimizer, which compile() makes under mixed_float16, would combine no gradients around a "
            "MultiOptimizer whose members are distributed: give the MultiOptimizer to tfddl.DistributedOptimizer, and not "
            f"its members. Received: inner_optimizer={inner!r}"
        )


def check_not_inside(optimizer: Any) -> None:
    """Checks that an undistributed optimizer wraps no distributed optimizer.

    Args:
        optimizer: One that is not distributed.

    Raises:
        ValueError: If there is one inside it.
    """
    for inner in optimizer_state.nested(optimizer):
        if is_subclassed(inner):
            refuse_inside(inner, type(_compat.innermost(optimizer)).__name__)


def refuse_inside(optimizer: Any, wrapper: str) -> NoReturn:
    """Raises the error for a distributed optimizer inside a wrapper that makes its own updates.

    Raises:
        ValueError: Always.
    """
    name = type(optimizer).__name__
    raise ValueError(
        "A distributed optimizer inside of one that makes its own updates, such as Lookahead or MovingAverage, "
        f"would combine no gradients: write tfddl.DistributedOptimizer({wrapper}({name}(...))). "
        f"Received: {name}, distributed, inside of another optimizer"
    )


def _distributed_members(optimizer: Any) -> list[bool]:
    if not _compat.is_addons_multi_optimizer(optimizer):
        return []
    return [is_subclassed(_compat.innermost(spec["optimizer"])) for spec in optimizer.optimizer_specs]
