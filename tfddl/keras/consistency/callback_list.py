"""The list that `fit` makes of its callbacks, which none of them gets to see."""

from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.keras.consistency import model_check
from tfddl.keras.distributed import patches
from tfddl.keras.distributed.status import is_distributed
from tfddl.keras.keras2 import addons
from tfddl.ops.variables import has_broadcast
from tfddl.runtime import basics
from tfddl.runtime.log import warn

Callback: Any = _compat.keras().callbacks.Callback


def watch() -> None:
    """Has Keras' CallbackList complete itself when it holds callbacks of ours, or a distributed model.

    `fit` makes the list and adds to its end; nothing calls us at that moment. Therefore the class itself
    looks, when an instance is made. The change does nothing for programs that do not use tfddl.
    """
    patches.watch_callback_lists(complete)


def complete(callbacks: Any) -> None:
    """Puts a StopTogetherCallback at the end of the list, if it has a broadcast or one elsewhere.

    Args:
        callbacks: A `keras.callbacks.CallbackList`.

    Raises:
        ValueError: If the model's optimizer would combine some gradients only (MultiOptimizer of TensorFlow Addons), or
            if it holds callbacks of ours where there is no eager execution.
    """
    from tfddl.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
    from tfddl.keras.callbacks.stop import StopTogetherCallback

    model = getattr(callbacks, "model", None)  # Keras 2 sets it later where there is no eager execution
    _check_eager(callbacks)
    for optimizer in () if model is None else model_check.optimizers_of(model):
        addons.check_members(optimizer)
    found = [callback for callback in callbacks.callbacks if isinstance(callback, StopTogetherCallback)]
    if not found:
        broadcasts = [one for one in callbacks.callbacks if isinstance(one, BroadcastGlobalVariablesCallback)]
        if not broadcasts:
            if _is_ours(callbacks, model):
                reminder = _Reminder()
                reminder.set_model(model)
                callbacks.callbacks.append(reminder)
            return
        found = [StopTogetherCallback(process_set=broadcasts[0].process_set)]
        found[0].set_params(callbacks.params)
        if model is not None:
            found[0].set_model(model)
    others = [callback for callback in callbacks.callbacks if callback not in found]
    callbacks.callbacks = [*others, found[-1]]
    found[-1].others = others


def _is_ours(callbacks: Any, model: Any) -> bool:
    optimizer = getattr(model, "optimizer", None)
    return (optimizer is not None and is_distributed(optimizer)) or bool(_ours_among(callbacks))


def _ours_among(callbacks: Any) -> list[str]:
    return [type(each).__name__ for each in callbacks.callbacks if type(each).__module__.startswith("tfddl.")]


def _check_eager(callbacks: Any) -> None:
    """In a graph of TF1 our callbacks would only add operations to it, which nobody runs."""
    ours = _ours_among(callbacks)
    if ours and not tf.compat.v1.executing_eagerly_outside_functions():
        raise ValueError(
            "Callbacks of tfddl need eager execution: do without tf.compat.v1.disable_eager_execution() and graphs, "
            "or train in sessions with a tf.compat.v1.train.Optimizer and tfddl.BroadcastGlobalVariablesHook. "
            f"Received: callbacks={ours}"
        )


class _Reminder(Callback):
    """Says what nobody would notice: that ranks train from different weights."""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if basics.is_initialized() and basics.size() > 1 and not self._has_broadcast():
            warn(
                "fit has no BroadcastGlobalVariablesCallback, and hvd.broadcast_variables has not been called for this "
                "model: the ranks train from different weights, and nobody checks that they take the same steps. Add "
                "hvd.callbacks.BroadcastGlobalVariablesCallback(0) to fit's callbacks, on all ranks."
            )

    def _has_broadcast(self) -> bool:
        return self.model is not None and has_broadcast(self.model.variables)
