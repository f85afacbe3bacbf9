"""`rank_zero_only`: a callback that runs on one rank."""

from typing import Any

from tfddl import _compat
from tfddl.keras.consistency import callback_list
from tfddl.runtime import basics

# These change the training, by what one rank has seen. On one rank alone the ranks' models would differ.
_FOR_ALL = (
    "LearningRateScheduler",
    "ReduceLROnPlateau",
    "SwapEMAWeights",
    "TerminateOnNaN",
)


def rank_zero_only(callback: Any) -> Any:
    """Makes a callback run on rank 0 alone; the other ranks do not wait for it.

        callbacks=[..., hvd.callbacks.rank_zero_only(keras.callbacks.TensorBoard("logs"))]

    For callbacks that write files or print: TensorBoard, CSVLogger, ModelCheckpoint, a progress bar, a LambdaCallback; and
    for BackupAndRestore, if BroadcastGlobalVariablesCallback follows it. While rank 0 writes, the others wait in the next
    collective, for half an hour at most (docs/errors.md). EarlyStopping may run on one rank, for a stop of one rank stops
    all; a callback that changes weights or learning rates may not.

    Args:
        callback: A callback of Keras. Every rank makes one; only the first is used.

    Returns:
        `callback` on rank 0, and on other ranks a callback that does nothing.

    Raises:
        TypeError: `callback` is no callback of Keras.
        ValueError: All ranks have to run it: it is one of tfddl's, or changes the training, as ReduceLROnPlateau does. Or
            tfddl is not initialized.
    """
    callbacks = _compat.keras().callbacks
    if not isinstance(callback, callbacks.Callback):
        raise TypeError(
            f"rank_zero_only takes a callback of Keras: pass an instance, not its class. Received: {callback!r}"
        )
    for_all = tuple(getattr(callbacks, name) for name in _FOR_ALL if hasattr(callbacks, name))
    if isinstance(callback, for_all) or callback_list.is_ours(type(callback)):
        raise ValueError(
            f"All ranks have to run a {type(callback).__name__}, else their models differ, or they wait for each other: "
            "give it to fit as it is."
        )
    return callback if basics.rank() == 0 else callbacks.Callback()
