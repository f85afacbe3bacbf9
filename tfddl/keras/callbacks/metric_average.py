"""MetricAverageCallback: metrics of the whole job."""

from typing import Any

from tfddl.keras.consistency import callback_list
from tfddl.keras.metric_states import Snapshot, merge, snapshot
from tfddl.ops.exchange import all_numbers
from tfddl.runtime.agreement import by_rank
from tfddl.runtime.log import warn_once
from tfddl.runtime.process_sets import ProcessSet, check_type, global_process_set


class MetricAverageCallback(callback_list.ListedCallback):
    """Gives all ranks the metrics of the whole job.

    Loss and metrics are those that one process computes from all the data, however the ranks share it: the states of
    the metrics are added up over ranks. So AUC, F1, IoU, uneven shards and sample weights are exact too. Other
    numbers in `logs` are averaged over ranks: numbers of your own `train_step` that are no metrics, numbers of other
    callbacks, and a `keras.metrics.Metric` of your own with its own `update_state`, unless it holds only metrics of Keras 3.
    If the variables of such a metric are sums over the data, set `additive = True` in its class.

    In `fit` the callback changes `logs` in place at the end of each epoch, so that the callbacks after it in the list, and
    the history, see the whole job's numbers: put it before `EarlyStopping`, `ModelCheckpoint` and `ReduceLROnPlateau`. All
    callbacks see the numbers of the last epoch in `on_train_end`. Numbers of single batches, of `on_test_end` and of the
    progress bar stay each rank's own. So does the result of `model.evaluate`: see `tfddl.evaluate`.

    Args:
        process_set: The ranks that train together ("all ranks" above). Defaults to all.

    Raises:
        ValueError: At the end of an epoch, on every rank, if the ranks have different metrics; for example
            if only one was given validation data.
    """

    def __init__(self, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.process_set = check_type(process_set)
        self.owner = type(self).__name__  # first part of the names of its collectives
        self.decided_by_rank_0 = False  # see metric_states.merge
        self._validated, self._snapshots, self._training = 0, dict[str, Snapshot](), False
        self._last: dict[str, Any] = {}  # the numbers of the last epoch
        callback_list.watch()

    def on_list(self, callbacks: Any) -> None:
        """Has the state kept before any callback of the list may call `model.evaluate`, which starts the metrics anew."""
        callbacks.callbacks = [_EndOfSteps(self), *callbacks.callbacks]

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Resets the state of the last epoch."""
        self._validated, self._snapshots, self._training = 0, {}, True

    def keep_state(self) -> None:
        """Keeps the state of training, unless validation has followed."""
        if not self._snapshots:
            self._snapshots[""] = snapshot(self.model)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Keeps the state of training, before validation starts from zero."""
        if self._training:
            self._snapshots[""] = snapshot(self.model)

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the batches of validation."""
        self._validated = batch + 1

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Keeps the state of validation."""
        if self._training:
            self._snapshots["val_"] = snapshot(self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Changes the numbers in `logs`."""
        self._training = False
        numbers = {} if logs is None else logs
        self.keep_state()
        means = self.merge(numbers, self._snapshots)
        self._last = dict(numbers)
        self.compare([key for key in means if key.startswith("val_")])

    def repeat_last_epoch(self, logs: dict[str, Any]) -> None:
        """Gives `logs` the numbers of the last epoch: Keras keeps this rank's own for the end of training."""
        logs.update((key, self._last[key]) for key in logs.keys() & self._last.keys())

    def merge(
        self, logs: dict[str, Any], snapshots: dict[str, Snapshot], ranks: int | None = None
    ) -> list[str]:
        """See `tfddl.keras.metric_states.merge`."""
        return merge(logs, snapshots, self.owner, self.process_set, ranks, self.decided_by_rank_0)

    def compare(self, means: list[str]) -> None:
        """Warns if ranks have validated different numbers of batches and plain means depend on that.

        Args:
            means: The names of numbers that are plain means over ranks.
        """
        (counts,) = all_numbers(self._validated, name=f"{self.owner}.validated", process_set=self.process_set)
        if means and len(set(counts.values()) - {0}) > 1:
            warn_once(
                "The ranks validate different numbers of batches, but MetricAverageCallback gives all ranks the same "
                f"weight in {', '.join(means)}, which is an approximation: give each rank as many batches, or set "
                "`additive = True` in a metric whose variables are sums. "
                f"Received batches of {by_rank(counts)}",
                self.process_set,
            )


class _EndOfSteps(callback_list.Callback):  # type: ignore[misc]
    """The first of the list: has a MetricAverageCallback act before the callbacks in front of it."""

    def __init__(self, average: MetricAverageCallback) -> None:
        super().__init__()
        self._average = average

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._average.keep_state()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._average.repeat_last_epoch({} if logs is None else logs)
