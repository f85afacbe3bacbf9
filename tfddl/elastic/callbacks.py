"""Callbacks that keep a state during `fit`, with Horovod's names."""

from __future__ import annotations

from typing import Any

from tfddl import _compat
from tfddl.elastic.state import State
from tfddl.keras.consistency import callback_list
from tfddl.keras.consistency.callback_list import Callback


class CommitStateCallback(callback_list.CommittingCallback):
    """Commits a state after every so many batches, and at the end of each epoch.

    Place it behind `UpdateBatchStateCallback` and `UpdateEpochStateCallback`, so that it commits what they have noted.

    Args:
        state: A `State`.
        batches_per_commit: The number of batches between two commits. A commit copies the weights.

    Raises:
        ValueError: `batches_per_commit` is not positive.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(
                f"batches_per_commit must be 1 or more: pass one. Received: {batches_per_commit!r}"
            )
        callback_list.watch()
        self.state, self.batches_per_commit = state, batches_per_commit
        self.batches_remaining = batches_per_commit
        self._last = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Counts from the beginning, equally on all ranks."""
        self.batches_remaining = self.batches_per_commit

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keras counts the batches of an epoch from 0."""
        self._last = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Commits if it is time. With `steps_per_execution` Keras calls this once for several batches."""
        done = _compat.batches_done(self.model, batch)
        self.batches_remaining -= done - self._last
        self._last = done
        if self.batches_remaining <= 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()
        super().on_train_batch_end(batch, logs)  # calls on_batch_end of a subclass

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Commits the weights that training goes on with, not the averages that `SwapEMAWeights` has put into the model."""
        with callback_list.weights_of_training(self.in_front, epoch):
            self.state.commit()


class UpdateBatchStateCallback(Callback):
    """Keeps the number of the batch in `state.batch`: that of the last batch, and 0 between epochs.

    Args:
        state: A `State` with an attribute `batch`.
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state: Any = state

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes the batch."""
        self.state.batch = _compat.batches_done(self.model, batch) - 1
        super().on_train_batch_end(batch, logs)  # calls on_batch_end of a subclass

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """The next epoch begins with batch 0."""
        self.state.batch = 0


class UpdateEpochStateCallback(Callback):
    """Keeps the number of epochs that have ended in `state.epoch`, counted over all starts of the job.

    `fit` may count from there, `fit(initial_epoch=state.epoch, epochs=10)`, or as Horovod's examples do from 0,
    `fit(epochs=10 - state.epoch)`.

    Args:
        state: A `State` with an attribute `epoch`.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch: int = self.state.epoch
        self._first: int | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Notes how many epochs have ended before."""
        self.initial_epoch, self._first = self.state.epoch, None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes the number of `fit`'s first epoch."""
        self._first = epoch if self._first is None else self._first

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes that one more epoch has ended."""
        self.state.epoch = self.initial_epoch + epoch - (self._first or 0) + 1
