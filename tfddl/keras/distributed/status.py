"""Questions about any optimizer: is it distributed, and how many batches make an update?"""

from typing import Any

from tfddl import _compat
from tfddl.keras.distributed.dynamic_subclass import is_subclassed
from tfddl.keras.distributed.settings import Settings, settings_of
from tfddl.keras.keras2 import addons, aggregation
from tfddl.v1 import optimizer as v1_optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether the gradients given to `optimizer` get combined over all ranks."""
    inner = _compat.innermost(optimizer)
    tf1 = _compat.tf1_optimizer(inner)
    if tf1 is not None:
        return v1_optimizer.is_distributed(tf1)
    if _compat.has_inner_optimizers(inner) and inner._inner_optimizers:
        return all(map(is_subclassed, inner._inner_optimizers))
    return is_subclassed(inner) or addons.has_distributed_members(inner)


def all_settings(optimizer: Any) -> list[Settings]:
    """The settings of a distributed optimizer, or those of the distributed members of a plain MultiOptimizer.

    Args:
        optimizer: Any optimizer, or None.
    """
    inner = _compat.innermost(optimizer)
    whole = [inner] if is_subclassed(inner) else map(_compat.innermost, _compat.members_of(inner))
    return [settings_of(each) for each in whole if is_subclassed(each)]


def passes_of(optimizer: Any) -> int:
    """How many batches make an update."""
    inner = _compat.innermost(optimizer)
    if _compat.is_keras_2() and is_subclassed(inner):
        return settings_of(inner).backward_passes_per_step
    return getattr(inner, "gradient_accumulation_steps", None) or 1


def passes_done(optimizer: Any) -> int:
    """How many batches a distributed optimizer has added up since its last update."""
    inner = _compat.innermost(optimizer)
    if _compat.is_keras_2():
        return aggregation.passes_done(inner)
    return _compat.steps_taken(inner) % passes_of(inner)
