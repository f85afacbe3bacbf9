"""Programs that DataParallel cannot divide, each with the line to change."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.keras.consistency import model_contents
from tfddl.keras.consistency.callback_list import ours_among
from tfddl.keras.distributed.status import is_distributed


def check_program(model: Any, callbacks: list[Any]) -> None:
    """Checks a compiled model and the callbacks of its `fit`.

    Raises:
        ValueError: They cannot be trained in parts; the message has the line to change.
    """
    for found in _faults(model, callbacks):
        raise ValueError(f"DataParallel cannot divide this training: {found}")


def _faults(model: Any, callbacks: list[Any]) -> Iterator[str]:
    keras = _compat.keras()
    for tensor in getattr(model, "inputs", None) or ():
        if tensor.shape and tensor.shape[0] is not None:
            shape = tuple(tensor.shape)
            yield (
                "each rank gets a part of a batch, but the model has a fixed batch size. Write "
                f"keras.Input({shape[1:]}). Received: an input of shape {shape}"
            )
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) and isinstance(layer, keras.layers.RNN):
            yield (
                f"a stateful RNN keeps a state for each row of the batch. Write stateful=False. Received: {layer.name!r}, a "
                f"{type(layer).__name__}"
            )
    for loss in tf.nest.flatten(getattr(model, "loss", None)):
        if getattr(loss, "reduction", "") in (None, "none"):
            yield (
                "a loss without reduction has no denominator. Write reduction='sum_over_batch_size'. "
                f"Received: {loss.name!r} with reduction={loss.reduction!r}"
            )
    if tf.distribute.has_strategy() or model._distribute_strategy is not None:
        yield "a tf.distribute strategy divides it already: leave the strategy and its scope out"
    if keras.distribution.distribution() is not None:
        yield "keras.distribution divides it already: leave keras.distribution.set_distribution() out"
    if ours_among(callbacks):
        yield (
            f"it adds tfddl's callbacks by itself: leave {', '.join(ours_among(callbacks))} out, and give fit all the data "
            "and the global batch size"
        )


def check_optimizers(model: Any, ours: set[int]) -> None:
    """Refuses an optimizer that the program has distributed.

    Args:
        model: The model.
        ours: The ids of the optimizers that DataParallel has distributed.

    Raises:
        ValueError: There is one.
    """
    for name, optimizer in model_contents.named_optimizers(model):
        if id(optimizer) not in ours and is_distributed(optimizer):
            raise ValueError(
                "DataParallel combines the gradients by itself: give compile() the plain optimizer, without "
                f"hvd.DistributedOptimizer. Received: model.{name} is distributed already"
            )
