"""The list that `fit` makes of its callbacks: callbacks of tfddl get to see it, and a missing broadcast is reported."""

import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfddl import _compat, runtime
from tfddl.keras.consistency import (
    cache_check,
    loop_check,
    model_contents,
    rows_check,
    sharded_check,
)
from tfddl.keras.distributed import patches
from tfddl.keras.distributed.status import is_distributed
from tfddl.keras.keras2 import addons
from tfddl.ops.variables import has_broadcast
from tfddl.runtime import basics
from tfddl.runtime.log import warn, warn_once

Callback: Any = _compat.keras().callbacks.Callback
_shards = False  # whether the program has sharded data over several ranks


class ListedCallback(Callback):
    """A callback that is told of the list that it is in.

    Attributes:
        looks_after: Whether it broadcasts or compares what the ranks train, so that no warning has to.
    """

    looks_after = False

    def on_list(self, callbacks: Any) -> None:
        """Called once for each list, before training. May change the list.

        Args:
            callbacks: A `keras.callbacks.CallbackList`, which holds this callback.
        """
        raise NotImplementedError


class PreparingCallback(Callback):
    """A callback that restores before `fit` looks at its arguments, and saves.

    It stands behind all others, `StopTogetherCallback` too, which may change the weights with which `fit` ends.
    """

    def prepare(self, model: Any, arguments: dict[str, Any]) -> None:
        """Called at the beginning of `fit`.

        Args:
            model: The model.
            arguments: Those of `fit`, which may be changed.
        """
        raise NotImplementedError


class CommittingCallback(ListedCallback):
    """A callback that keeps the weights of the training, from any place in the list."""

    _list: Any = None

    def on_list(self, callbacks: Any) -> None:
        """Keeps the list."""
        self._list = callbacks

    @property
    def in_front(self) -> list[Any]:
        """The callbacks that Keras calls before this one."""
        listed = [] if self._list is None else self._list.callbacks
        return list(itertools.takewhile(lambda each: each is not self, listed))


class LocalStepsCallback(ListedCallback):
    """A callback with which each rank trains alone for some steps, so that weights differ meanwhile.

    Attributes:
        finishes: Whether an exchange follows the last step. Else another callback restores earlier weights, and
            `StopTogetherCallback` averages these.
    """

    finishes = True

    @property
    def current(self) -> Any:
        """The object that counts steps and exchanges; None before the first step."""
        return None


@contextlib.contextmanager
def weights_of_training(callbacks: Iterable[Any], epoch: int) -> Iterator[None]:
    """For the end of an epoch: inside, the model has no averages that `SwapEMAWeights` has put into it.

    Args:
        callbacks: Those that Keras has called at this end.
        epoch: The epoch.
    """
    swapping = [each for each in callbacks if getattr(each, "swap_on_epoch", False)]
    for each in swapping:
        each.on_epoch_begin(epoch)
    yield
    for each in swapping:
        each.on_epoch_end(epoch)


def watch() -> None:
    """Has every `keras.callbacks.CallbackList` that Keras makes checked and completed, and prepares calls of `fit`."""
    patches.watch_callback_lists(_complete)
    patches.prepare_fits(_prepare)


def watch_shards() -> None:
    """The program shards data over several ranks: a warning says if `fit` or a loop of its own combines no gradients."""
    global _shards
    _shards = True
    loop_check.watch()
    watch()


def callbacks_of(arguments: dict[str, Any]) -> list[Any]:
    """The callbacks among the arguments of `fit`."""
    given = arguments.get("callbacks")
    given = getattr(given, "callbacks", given)  # a CallbackList
    return [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]


def _prepare(model: Any, arguments: dict[str, Any]) -> None:
    cache_check.note(arguments.get(name) for name in ("x", "validation_data"))
    for callback in callbacks_of(arguments):
        if isinstance(callback, PreparingCallback):
            callback.prepare(model, arguments)
    # Programs for Horovod often train on all rows on each rank, for fewer epochs.
    deals = _shards or "horovod" in sys.modules
    rows_check.note_fit({} if deals else arguments)


def is_ours(kind: type) -> bool:
    """Whether a class comes from tfddl."""
    return kind.__module__.startswith("tfddl.")


def ours_among(callbacks: list[Any]) -> list[str]:
    """The names of the classes of tfddl's public callbacks, in their order."""
    kinds = [type(each) for each in callbacks if is_ours(type(each))]
    return [kind.__name__ for kind in kinds if not kind.__name__.startswith("_")]


def _complete(callbacks: Any) -> None:
    model = getattr(callbacks, "model", None)  # Keras 2 sets it later where there is no eager execution
    ours = ours_among(callbacks.callbacks)
    _check_eager(ours)
    _check_local_steps(callbacks.callbacks)
    sharded_check.check_callbacks(callbacks.callbacks, model)
    for optimizer in () if model is None else model_contents.optimizers_of(model):
        addons.check_members(optimizer)
    listed = [callback for callback in callbacks.callbacks if isinstance(callback, ListedCallback)]
    for callback in sorted(listed, key=lambda each: isinstance(each, LocalStepsCallback)):  # these last
        callback.on_list(callbacks)
    optimizer = getattr(model, "optimizer", None)
    distributed = optimizer is not None and is_distributed(optimizer)
    if not any(each.looks_after for each in listed) and (ours or distributed or _shards):
        reminder = _Reminder() if ours or distributed else _GradientsCheck()
        reminder.set_model(model)
        callbacks.callbacks.append(reminder)


def _check_eager(ours: list[str]) -> None:
    """In a graph of TF1 our callbacks would only add operations to the graph, and no session would run them."""
    if ours and not tf.compat.v1.executing_eagerly_outside_functions():
        raise ValueError(
            "Callbacks of tfddl need eager execution: do without tf.compat.v1.disable_eager_execution() and graphs, "
            "or train in sessions with a tf.compat.v1.train.Optimizer and tfddl.BroadcastGlobalVariablesHook. "
            f"Received: callbacks={ours}"
        )


def _check_local_steps(callbacks: list[Any]) -> None:
    """Two of them would each take the movement of the other for that of the ranks."""
    found = [type(each).__name__ for each in callbacks if isinstance(each, LocalStepsCallback)]
    if len(found) > 1:
        raise ValueError(
            "One callback exchanges weights after some steps: choose LocalSGD or DiLoCo, once; for two levels of "
            "communication compile with hvd.DistributedOptimizer(optimizer, process_set=...) beside it. "
            f"Received: callbacks={found}"
        )


class _Reminder(Callback):
    """Warns if the ranks train from different weights, which no error would show."""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if basics.is_initialized() and basics.size() > 1 and not self._has_broadcast():
            warn(
                "fit has no BroadcastGlobalVariablesCallback, and hvd.broadcast_variables has not been called for this "
                "model: the ranks train from different weights, unless all have loaded the same file, and nothing checks "
                "that they take the same steps. Add hvd.callbacks.BroadcastGlobalVariablesCallback(0) to fit's callbacks, "
                "on all ranks."
            )

    def _has_broadcast(self) -> bool:
        model = self.model
        return model is not None and _compat.tells_weights(model) and has_broadcast(model.variables)


class _GradientsCheck(Callback):
    """Warns if each rank trains a model of its own on its shard of the data."""

    _requests: int | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if basics.is_initialized() and basics.size() > 1:
            self._requests = runtime.request_count()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Not after the first batch: a step of the program's own may combine gradients every few batches.
        if basics.is_initialized() and self._requests == runtime.request_count():
            warn_once(
                "fit has combined no gradients in its first epoch, so each rank trains a model of its own on its shard of "
                "the data: use model.compile(optimizer=hvd.DistributedOptimizer(optimizer), ...), and add "
                "hvd.callbacks.BroadcastGlobalVariablesCallback(0) to fit's callbacks, on all ranks."
            )
            loop_check.forget()
        self._requests = None
