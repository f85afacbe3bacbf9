"""StopTogetherCallback: a stop that one rank wants is a stop of all, after the same batch."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.keras.consistency import callback_list, setup_check
from tfddl.keras.exchange import all_rows, quoted
from tfddl.ops.allreduce import allreduce
from tfddl.ops.constants import Sum
from tfddl.ops.variables import broadcast_variables
from tfddl.runtime.log import warn
from tfddl.runtime.process_sets import ProcessSet, check_type, global_process_set, members

Callback: Any = _compat.keras().callbacks.Callback


class StopTogetherCallback(Callback):
    """Stops all ranks when one of them sets `model.stop_training`.

    A rank that stopped alone would leave the others waiting for its gradients. `fit` puts this callback at
    the end of every list that holds a `BroadcastGlobalVariablesCallback`; in other lists put it yourself, and
    on all ranks. At the end of each epoch the ranks exchange whether one of them wants to stop.

    A stop in the middle of an epoch, as by `TerminateOnNaN`, needs an exchange after each batch. That costs a
    small collective a batch, and is done only where some rank has a callback that could ask for it:
    `TerminateOnNaN`, or one of your own with a hook for training batches. Without it such a stop waits for
    the end of the epoch.

    Two things that would make the ranks' weights differ without a word are looked at as well: learning rates
    that were set differently, and `EarlyStopping` that restores weights of different epochs.

    Args:
        every_batch: Whether to exchange after each batch. Defaults to `None`: where a callback could need it.
        process_set: Whose ranks stop together; "all ranks" means those. Defaults to all; the one that `fit` adds takes
            that of the `BroadcastGlobalVariablesCallback`.

    Raises:
        ValueError: At the end of an epoch, on every rank, if the ranks' learning rates differ.
    """

    def __init__(self, every_batch: bool | None = None, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        callback_list.watch()
        self.every_batch = every_batch
        self.process_set = check_type(process_set)
        self.others: list[Any] = []
        self._each, self._restores, self._waiting = False, False, False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """All ranks look after each batch if one of them has to."""
        each = any(map(_may_stop_within_epoch, self.others)) if self.every_batch is None else self.every_batch
        restores = any(getattr(other, "restore_best_weights", False) for other in self.others)
        flags = all_rows([each, restores], f"{type(self).__name__}.begin", self.process_set)
        setup_check.check_callbacks(self.others, f"{type(self).__name__}.callbacks", self.process_set)
        _look_at_order(self.others, self.process_set)
        self._each, self._restores = bool(flags[:, 0].any()), bool(flags[:, 1].any())
        self._waiting = False

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops all, or puts a stop of this rank off to the end of the epoch."""
        if self._each:
            mine, name = tf.constant(int(self.model.stop_training)), f"{type(self).__name__}.batch"
            wanting = allreduce(mine, op=Sum, name=name, process_set=self.process_set)
            self.model.stop_training = bool(wanting > 0)
        elif self.model.stop_training:
            self._waiting, self.model.stop_training = True, False

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops all, and compares learning rates."""
        rate = _compat.settable_learning_rate(self.model.optimizer)
        wants = self._waiting or self.model.stop_training
        rows = all_rows(
            [wants, 0.0 if rate is None else rate], f"{type(self).__name__}.epoch", self.process_set
        )
        self._waiting, self.model.stop_training = False, bool(rows[:, 0].any())
        _check_rates(rows[:, 1], self.process_set)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Ranks that went back to different epochs all take the first rank's weights."""
        if not self._restores:
            return
        mine = [other.best_epoch for other in self.others if getattr(other, "restore_best_weights", False)]
        best = all_rows([mine[-1] if mine else -1], f"{type(self).__name__}.restored", self.process_set)[:, 0]
        if len(set(best)) > 1:
            root = members(self.process_set)[0]
            warn(
                "EarlyStopping has restored the weights of different epochs: "
                + quoted((int(number) + 1 for number in best), self.process_set)
                + f". All ranks now have those of rank {root}. Put MetricAverageCallback before EarlyStopping, on all "
                "ranks, so that it sees the same metrics.",
                self.process_set,
            )
            broadcast_variables(self._shared_weights(), root, self.process_set)

    def _shared_weights(self) -> list[Any]:
        """The weights that are to be equal on all ranks."""
        weights = list(self.model.weights)
        local = setup_check.local_among(self.model, weights)
        keepers = [other for other in self.others if hasattr(other, "keeps")]
        return [
            weight
            for place, weight in enumerate(weights)
            if place not in local and not any(other.keeps(weight) for other in keepers)
        ]


def _look_at_order(callbacks: list[Any], process_set: ProcessSet) -> None:
    """What reads metrics ahead of our callback sees this rank's own."""
    names = [type(each).__name__ for each in callbacks]
    if "MetricAverageCallback" in names:
        early = {"EarlyStopping", "ReduceLROnPlateau"} & set(names[: names.index("MetricAverageCallback")])
        if early:
            warn(
                f"{' and '.join(sorted(early))} comes before MetricAverageCallback in fit's callbacks, and sees the metrics "
                "of one rank: put it behind.",
                process_set,
            )


def _check_rates(rates: np.ndarray, process_set: ProcessSet) -> None:
    if len(set(rates)) > 1:
        raise ValueError(
            "The ranks have set different learning rates, so that their weights come apart: put "
            "MetricAverageCallback before callbacks that look at metrics, such as ReduceLROnPlateau, and give those to "
            "all ranks. Received: " + quoted((f"{rate:g}" for rate in rates), process_set)
        )


def _may_stop_within_epoch(callback: Any) -> bool:
    """Whether a callback could set `stop_training` before the epoch is over."""
    callbacks = _compat.keras().callbacks
    kind = type(callback)
    known = _compat.comes_with_keras(kind) or kind.__module__.startswith("tfddl.")
    if known and not isinstance(callback, callbacks.LambdaCallback):
        return isinstance(callback, callbacks.TerminateOnNaN)
    hooks = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
    return any(
        hook in vars(callback) or getattr(type(callback), hook, None) is not getattr(Callback, hook)
        for hook in hooks
    )
