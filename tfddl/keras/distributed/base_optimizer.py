"""The class that is put in front of the user's optimizer class."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfddl.gradients import reduced_marks, reduction
from tfddl.keras.distributed import places
from tfddl.keras.distributed.adoption import Adopted, Settings, settings_of
from tfddl.keras.distributed.backward_passes import undo_mean
from tfddl.keras.distributed.handover import complete, reduce_as_set, reduce_overwritten


class Distributed(Adopted):
    """Reduces where Keras clips: once for each real update, on accumulated and unscaled gradients.

    Keras 3.4 clips, and so reduces, once for each micro-batch.
    """

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """See `keras.optimizers.Optimizer.apply`."""
        plain: Any = super()
        settings = settings_of(self)
        grads = list(grads)
        known: Any = plain._trainable_variables if trainable_variables is None else trainable_variables
        variables = list(known)
        if len(variables) != len(grads):
            return plain.apply(grads, trainable_variables)  # which says what is wrong
        if not settings.done:
            grads = complete(settings, grads, variables)
            grads = reduce_overwritten(settings, grads, variables)
        places.remember(zip(grads, variables, strict=True))
        refuse_global_norm(self, settings, grads, variables)
        waiting = [
            (grad, variable)
            for grad, variable in zip(grads, variables, strict=True)
            if grad is not None and not reduction.is_overwritten(variable)
        ]
        done = settings.done or reduced_marks.all_reduced(grad for grad, _ in waiting)
        with applying(settings, done, [variable for _, variable in waiting]):
            result = plain.apply(grads, None if trainable_variables is None else variables)
            _check_asked(self, settings)
        return result

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        plain: Any = super()
        settings = settings_of(self)
        settings.asked = True
        if not settings.done:
            grads = reduce_as_set(settings, grads, settings.variables)
        return plain._clip_gradients(undo_mean(settings, grads))


@contextmanager
def applying(settings: Settings, done: bool, variables: list[Any] | None = None) -> Iterator[None]:
    """Remembers for the time of one `apply` whether its gradients are reduced already, and what they belong to."""
    before = settings.done, settings.asked, settings.variables
    settings.done, settings.asked, settings.variables = done, False, variables
    try:
        yield
    finally:
        settings.done, settings.asked, settings.variables = before


def refuse_global_norm(
    optimizer: Any, settings: Settings, grads: Sequence[Any], variables: Sequence[Any]
) -> None:
    """A norm over local gradients is another one on each rank, and would make all weights differ."""
    local = any(map(reduced_marks.is_local, grads)) or settings.local.among(variables)
    if local and optimizer.global_clipnorm:
        raise ValueError(
            "global_clipnorm cannot go with local variables, whose gradients differ by rank: use clipnorm or clipvalue. "
            f"Received: global_clipnorm={optimizer.global_clipnorm!r}"
        )


def _check_asked(optimizer: Any, settings: Settings) -> None:
    """Notices an optimizer class with an `apply` of its own, which would train unreduced."""
    # In eager mode an accumulating optimizer comes to its update, and to us, only every N-th time.
    waits = optimizer.gradient_accumulation_steps and tf.executing_eagerly()
    if not (settings.asked or settings.done or waits or not settings.variables):
        raise RuntimeError(
            f"{type(optimizer).__name__} never calls `_clip_gradients`, where DistributedOptimizer combines "
            "gradients: use tfddl.DistributedGradientTape with the plain optimizer instead."
        )
