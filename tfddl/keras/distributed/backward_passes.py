"""`backward_passes_per_step`: Horovod's option for accumulation, set as Keras' `gradient_accumulation_steps`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.keras.distributed.settings import Settings


def check_passes(passes: int) -> int:
    """Returns `backward_passes_per_step` if it is a number of batches.

    Raises:
        ValueError: If it is not a positive integer.
    """
    if not isinstance(passes, int) or isinstance(passes, bool) or passes < 1:
        raise ValueError(
            "backward_passes_per_step is the number of batches before an update: pass a whole number, 1 or more. "
            f"Received: backward_passes_per_step={passes!r}"
        )
    return passes


def accumulate(optimizer: Any, passes: int) -> None:
    """Makes an optimizer, or each member of a MultiOptimizer, accumulate the gradients of `passes` batches.

    Raises:
        ValueError: If the optimizer accumulates already, or is built, which is too late for accumulators. An optimizer
            from a file, built with its accumulators, may have the same number.
    """
    optimizer = _compat.innermost(optimizer)
    if passes == 1:
        return
    if _compat.has_inner_optimizers(optimizer):
        for inner in optimizer._inner_optimizers:
            accumulate(inner, passes)
        return
    present = optimizer.gradient_accumulation_steps
    if present and not (optimizer.built and present == passes):
        raise ValueError(
            "Accumulate by backward_passes_per_step or by the optimizer's gradient_accumulation_steps, not by both. "
            f"Received: backward_passes_per_step={passes}, gradient_accumulation_steps={present}"
        )
    if optimizer.built and not present:
        raise ValueError(
            "backward_passes_per_step needs variables to accumulate in, which an optimizer makes when it is built, and "
            "this one is built already: make it with gradient_accumulation_steps. "
            f"Received: backward_passes_per_step={passes}, optimizer={optimizer!r}"
        )
    optimizer.gradient_accumulation_steps = passes


def undo_mean(settings: Settings, grads: Sequence[Any]) -> Sequence[Any]:
    """Returns the sum of the passes' gradients instead of Keras' mean, unless the settings ask for the mean."""
    passes = settings.backward_passes_per_step
    if passes == 1 or settings.average_aggregated_gradients:
        return grads
    return [None if grad is None else tf.math.scalar_mul(float(passes), grad) for grad in grads]
