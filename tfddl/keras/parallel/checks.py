"""Programs that DataParallel cannot divide, each with the line to change."""

from collections.abc import Callable
from typing import Any, NoReturn

import tensorflow as tf

from tfddl import _compat
from tfddl.keras.consistency import model_contents
from tfddl.keras.consistency.callback_list import PreparingCallback, ours_among
from tfddl.keras.distributed.status import is_distributed


def check_program(model: Any, callbacks: list[Any]) -> None:
    """Checks a compiled model and the callbacks of its `fit`.

    Raises:
        ValueError: They cannot be trained in parts; the message has the line to change.
    """
    _check_layers(model)
    for loss in tf.nest.flatten(getattr(model, "loss", None)):
        if getattr(loss, "reduction", "") in (None, "none"):
            _refuse(
                "a loss without reduction has no denominator. Write reduction='sum_over_batch_size'. "
                f"Received: {loss.name!r} with reduction={loss.reduction!r}"
            )
        _check_rows_alone(loss)
    if tf.distribute.has_strategy() or model._distribute_strategy is not None:
        _refuse("a tf.distribute strategy divides it already. Leave the strategy and its scope out")
    if _compat.keras().distribution.distribution() is not None:
        _refuse("keras.distribution divides it already. Leave keras.distribution.set_distribution() out")
    ours = ours_among([each for each in callbacks if not isinstance(each, PreparingCallback)])
    if ours:
        raise ValueError(
            "The program distributes itself already, with tfddl's callbacks: start it without --auto and without "
            "hvd.DataParallel(). Or leave them out, and give fit all the data and the batch size of one process. "
            f"Received: {', '.join(ours)}"
        )


def _check_rows_alone(loss: Any) -> None:
    """Refuses Keras' losses that are no mean over rows: they compare rows, or are a ratio of sums over the batch."""
    name = str(
        getattr(loss, "__name__", loss) if not hasattr(loss, "reduction") else type(loss).__name__
    ).lower()
    axis = getattr(loss, "axis", None)
    axes = (0,) if axis is None else tuple(axis) if isinstance(axis, (list, tuple)) else (axis,)
    if name in ("dice", "tversky") and 0 in axes:
        _refuse(
            f"the loss {name} over the whole batch is no mean over rows. Write axis=(1, 2, 3), or the axes of one row. "
            f"Received: axis={axis!r}"
        )
    if name == "circle":
        _refuse(
            "the loss circle compares the rows of a batch, which the ranks do not share. Use another loss"
        )


def _check_layers(model: Any) -> None:
    for tensor in _compat.inputs_of(model):
        if tensor.shape and tensor.shape[0] is not None:
            shape = tuple(tensor.shape)
            _refuse(
                "each rank gets a part of a batch, but the model has a fixed batch size. Write "
                f"keras.Input({shape[1:]}). Received: an input of shape {shape}"
            )
    for layer in model._flatten_layers():
        if layer.activity_regularizer is not None and not _compat.divides_activity_losses():
            _refuse(
                f"Keras {_compat.keras().__version__} sums an activity_regularizer over the batch, which is no mean over "
                "rows. Use a newer Keras, which divides by the number of rows. "
                f"Received: {layer.name!r}, a {type(layer).__name__}"
            )
        if getattr(layer, "stateful", False) and isinstance(layer, _compat.keras().layers.RNN):
            _refuse(
                f"a stateful RNN keeps a state for each row of the batch. Write stateful=False. Received: {layer.name!r}, a "
                f"{type(layer).__name__}"
            )


def _refuse(reason: str) -> NoReturn:
    raise ValueError(f"DataParallel: {reason}")


def check_optimizers(model: Any, is_ours: Callable[[Any], bool]) -> None:
    """Refuses an optimizer that the program has distributed.

    Args:
        model: The model.
        is_ours: Whether DataParallel has distributed an optimizer.

    Raises:
        ValueError: There is one.
    """
    for name, optimizer in model_contents.named_optimizers(model):
        if is_distributed(optimizer) and not is_ours(optimizer):
            raise ValueError(
                "The program distributes itself already, with its optimizer: start it without --auto and without "
                "hvd.DataParallel(). Or give compile() the plain optimizer, without hvd.DistributedOptimizer or "
                f"hvd.ShardedOptimizer. Received: model.{name} is distributed already"
            )
