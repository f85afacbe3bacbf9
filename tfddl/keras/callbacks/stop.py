"""StopTogetherCallback: if one rank wants to stop, all ranks stop after the same batch."""

from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.keras.consistency import callback_list, setup_check
from tfddl.ops.allreduce import allreduce
from tfddl.ops.constants import Sum
from tfddl.ops.exchange import all_numbers
from tfddl.ops.variables import broadcast_variables
from tfddl.runtime.agreement import by_rank, check_equal, differ, in_words
from tfddl.runtime.log import warn
from tfddl.runtime.process_sets import ProcessSet, check_type, global_process_set, members


class StopTogetherCallback(callback_list.ListedCallback):
    """Stops all ranks when one of them sets `model.stop_training`.

    A rank that stopped alone would leave the others waiting for its gradients. `fit` puts this callback at
    the end of every list that holds a `BroadcastGlobalVariablesCallback`, a `LocalSGD` or a `DiLoCo`; only a
    `ShardedCheckpoint` or an `ElasticCallback` stands behind it. Add it to other lists yourself, on all ranks. At the end
    of each epoch the ranks exchange whether one of them wants to stop.

    A stop in the middle of an epoch, as by `TerminateOnNaN`, needs an exchange after each batch. That costs one
    small collective per batch, and happens only if some rank has a callback that could ask for it:
    `TerminateOnNaN`, or one of your own with a hook for training batches. Otherwise a stop in the middle waits for
    the end of the epoch.

    The callback also looks for two causes of silently different weights: learning rates that were set differently,
    and an `EarlyStopping` that restores weights of different epochs. A warning says if `EarlyStopping` has stopped on some
    ranks and not on others.

    Args:
        every_batch: Whether to exchange after each batch. Defaults to `None`: if a callback could need it.
        process_set: The ranks that stop together ("all ranks" above). Defaults to all; the callback that `fit` adds
            takes the set of the callback that asked for it.

    Raises:
        ValueError: At the end of an epoch, on every rank, if the ranks' learning rates differ.
    """

    looks_after = True

    def __init__(self, every_batch: bool | None = None, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        callback_list.watch()
        self.every_batch = every_batch
        self.process_set = check_type(process_set)
        self.compares_rates = True
        self.others: list[Any] = []
        self._each_batch, self._restores, self._postponed = False, False, False

    def on_list(self, callbacks: Any) -> None:
        """Goes to the end of the list, as the only callback of this kind; those that save come behind."""
        self.others = [each for each in callbacks.callbacks if not isinstance(each, StopTogetherCallback)]
        saving = [each for each in self.others if isinstance(each, callback_list.PreparingCallback)]
        callbacks.callbacks = [*(each for each in self.others if each not in saving), self, *saving]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Compares the callbacks of the ranks; all ranks exchange after each batch if one of them has to."""
        each = any(map(_may_stop_within_epoch, self.others)) if self.every_batch is None else self.every_batch
        wants_each, wants_restored = self._exchange("begin", each, bool(self._restoring()))
        setup_check.check_callbacks(self.others, f"{type(self).__name__}.callbacks", self.process_set)
        _look_at_order(self.others, self.process_set)
        self._each_batch, self._restores = any(wants_each.values()), any(wants_restored.values())
        self._postponed = False
        for local_steps in self._local_steps():
            local_steps.finishes = not self._restores

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops all ranks, or postpones a stop of this rank to the end of the epoch."""
        if self._each_batch:
            mine, name = tf.constant(int(self.model.stop_training)), f"{type(self).__name__}.batch"
            wanting = allreduce(mine, op=Sum, name=name, process_set=self.process_set)
            self.model.stop_training = bool(wanting > 0)
        elif self.model.stop_training:
            self._postponed, self.model.stop_training = True, False
        super().on_train_batch_end(batch, logs)  # calls on_batch_end of a subclass

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops all ranks, and compares learning rates."""
        rate = _compat.settable_learning_rate(self.model.optimizer)
        wanted = self._postponed or self.model.stop_training
        wants, rates, stopped = self._exchange(
            "epoch", wanted, 0.0 if rate is None else rate, self._stopped_epoch()
        )
        self._postponed, self.model.stop_training = False, any(wants.values())
        if not self._restores:  # else on_train_end compares the epochs
            _warn_of_early_stops(stopped, self.process_set)
        if not self.compares_rates:
            return
        check_equal(
            rates,
            "The ranks have set different learning rates, which would make their weights diverge: put "
            "MetricAverageCallback before callbacks that look at metrics, such as ReduceLROnPlateau, and give those to "
            "all ranks.",
        )

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Makes restored weights equal: the mean under LocalSGD and DiLoCo, the first rank's if epochs differ."""
        if not self._restores:
            return
        always = _compat.restores_after_each_training()
        restored = [each for each in self._restoring() if always or getattr(each, "stopped_epoch", True)]
        # A callback of the user's own may have no `best_epoch`.
        best = [each.best_epoch + 1 for each in restored if hasattr(each, "best_epoch")]
        (epochs,) = self._exchange("restored", best[-1] if best else 0)
        if differ(epochs):
            root = members(self.process_set)[0]
            warn(
                f"EarlyStopping has restored the weights of different epochs: {by_rank(epochs)}. All ranks now have the "
                f"weights of rank {root}. Put MetricAverageCallback before EarlyStopping, on all ranks, so that it sees the "
                "same metrics.",
                self.process_set,
            )
            broadcast_variables(self._shared_weights(), root, self.process_set)
        for local in (each.current for each in self._local_steps()):
            if local is not None:
                if not differ(epochs):
                    local.average()
                local.begin()  # so that a checkpoint has these weights as theta

    def _local_steps(self) -> list[callback_list.LocalStepsCallback]:
        return [each for each in self.others if isinstance(each, callback_list.LocalStepsCallback)]

    def _exchange(self, part: str, *numbers: float) -> list[dict[int, float]]:
        return all_numbers(*numbers, name=f"{type(self).__name__}.{part}", process_set=self.process_set)

    def _stopped_epoch(self) -> int:
        """The epoch, from 0, after which an EarlyStopping of this rank has stopped; 0 if none has, -1 without one."""
        kind = _compat.keras().callbacks.EarlyStopping
        return max((other.stopped_epoch for other in self.others if isinstance(other, kind)), default=-1)

    def _restoring(self) -> list[Any]:
        return [other for other in self.others if getattr(other, "restore_best_weights", False)]

    def _shared_weights(self) -> list[Any]:
        """The weights that are meant to be equal on all ranks."""
        weights = list(self.model.weights)
        local = setup_check.local_slots(self.model, weights)
        keepers = [other for other in self.others if hasattr(other, "keeps")]
        return [
            weight
            for slot, weight in enumerate(weights)
            if slot not in local and not any(other.keeps(weight) for other in keepers)
        ]


def add_to(callbacks: Any, process_set: ProcessSet, trains_alone: bool = False) -> None:
    """Adds a StopTogetherCallback to the end of a `keras.callbacks.CallbackList` that has none.

    Args:
        callbacks: The list.
        process_set: The ranks that stop together.
        trains_alone: Whether each rank trains alone for some steps. Then no exchange follows a batch, and learning rates
            may differ.
    """
    if any(isinstance(each, StopTogetherCallback) for each in callbacks.callbacks):
        return
    stop = StopTogetherCallback(False if trains_alone else None, process_set)
    stop.compares_rates = not trains_alone
    stop.set_params(callbacks.params)
    if getattr(callbacks, "model", None) is not None:
        stop.set_model(callbacks.model)
    stop.on_list(callbacks)


def _look_at_order(callbacks: list[Any], process_set: ProcessSet) -> None:
    """Warns of callbacks that read metrics ahead of MetricAverageCallback: they see this rank's own."""
    names = [type(each).__name__ for each in callbacks]
    if "MetricAverageCallback" in names:
        early = {"EarlyStopping", "ReduceLROnPlateau"} & set(names[: names.index("MetricAverageCallback")])
        if early:
            warn(
                f"{' and '.join(sorted(early))} comes before MetricAverageCallback in fit's callbacks, and sees the metrics "
                "of one rank: put it behind.",
                process_set,
            )


def _warn_of_early_stops(epochs: dict[int, float], process_set: ProcessSet) -> None:
    """Warns if the EarlyStopping of some ranks has stopped after this epoch, and that of others has not."""
    stopped = [rank for rank, epoch in epochs.items() if epoch > 0]
    others = [rank for rank, epoch in epochs.items() if epoch == 0]
    if stopped and others:
        warn(
            f"EarlyStopping has stopped training on {in_words(stopped)} in epoch {int(epochs[stopped[0]]) + 1}, but not on "
            f"{in_words(others)}. All ranks stop now. Put hvd.callbacks.MetricAverageCallback() before EarlyStopping, on "
            "all ranks, so that it sees the same metrics.",
            process_set,
        )


def _may_stop_within_epoch(callback: Any) -> bool:
    """Whether a callback could set `stop_training` before the epoch is over."""
    callbacks = _compat.keras().callbacks
    kind = type(callback)
    known = _compat.comes_with_keras(kind) or callback_list.is_ours(kind)
    if known and not isinstance(callback, callbacks.LambdaCallback):
        return isinstance(callback, callbacks.TerminateOnNaN)
    hooks = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
    return any(
        hook in vars(callback) or getattr(kind, hook, None) is not getattr(callbacks.Callback, hook)
        for hook in hooks
    )
