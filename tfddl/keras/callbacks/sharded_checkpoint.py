"""ShardedCheckpoint as a callback of `fit`."""

from __future__ import annotations

from typing import Any

from tfddl import _compat
from tfddl.keras.callbacks.local_steps import LocalSGD
from tfddl.keras.consistency import callback_list, model_contents
from tfddl.keras.consistency.callback_list import PreparingCallback, callbacks_of
from tfddl.keras.distributed.status import passes_done
from tfddl.keras.sharded import checkpoint
from tfddl.ops.exchange import all_numbers
from tfddl.runtime.log import warn_once


class ShardedCheckpoint(PreparingCallback):
    """Saves the training in `fit`, each rank its part, and goes on from the newest checkpoint.

    See `tfddl.ShardedCheckpoint`.

    If the same program runs again, on any number of ranks, `fit` restores the newest complete checkpoint and begins with the
    epoch behind it; with a checkpoint from the middle of an epoch it begins that epoch anew, as with
    `keras.callbacks.BackupAndRestore`. If all epochs are done, `fit` trains no more. It holds the outer state of the
    callbacks `LocalSGD` and `DiLoCo` too, but not what other callbacks have counted. It saves nothing while weights are NaN
    or infinite.

        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.ShardedCheckpoint("checkpoints"),
        ]

    Place it on all ranks; it works as the last of the list. Each call of `fit` in a program needs a directory of its own.

    Args:
        directory: See `tfddl.ShardedCheckpoint`.
        save_freq: `"epoch"`, or the number of batches between two checkpoints; the end of an epoch is one too. With gradient
            accumulation the checkpoint comes with the next update.
        keep: How many checkpoints stay. Defaults to 2.

    Raises:
        ValueError: `save_freq` or `keep` is wrong. In `fit`, on every rank: the model is not built, the callback has served
            another call, the directory cannot be written or is another one on some ranks, or the newest checkpoint is that
            of another model, was saved without `epoch`, or cannot be read.
    """

    def __init__(self, directory: Any, save_freq: Any = "epoch", keep: int = 2) -> None:
        super().__init__()
        if save_freq != "epoch" and not (isinstance(save_freq, int) and save_freq > 0):
            raise ValueError(
                f'save_freq is "epoch" or a number of batches: pass one of them. Received: save_freq={save_freq!r}'
            )
        checkpoint.check_keep(keep)
        callback_list.watch()
        self._directory, self._save_freq, self._keep = directory, save_freq, keep
        self._checkpoint: checkpoint.ShardedCheckpoint | None = None
        self._others: list[Any] = []
        self._local_callback: LocalSGD | None = None
        self._restored = self._is_over = self._is_cut = False
        self._prepared: Any = None  # the model
        self._epoch = self._since = self._last = 0

    def prepare(self, model: Any, arguments: dict[str, Any]) -> None:
        """Restores the newest checkpoint, at the first `fit`, and makes `fit` begin behind it. All ranks call it.

        Args:
            model: The compiled model.
            arguments: Those of `fit`; changed.
        """
        self._others = [each for each in callbacks_of(arguments) if each is not self]
        arguments["callbacks"] = [*self._others, self]
        self._local_callback = next((each for each in self._others if isinstance(each, LocalSGD)), None)
        if self._checkpoint is not None:
            if self._is_over or model is not self._prepared:
                raise ValueError(
                    "A ShardedCheckpoint serves one call of fit: make a new one for each call, with a directory of its own. "
                    f"Received: ShardedCheckpoint({str(self._directory)!r}) again"
                )
            # `fit` was interrupted, as in a notebook: the epoch begins anew.
            arguments["initial_epoch"] = max(self._epoch, arguments.get("initial_epoch", 0))
            return
        opened = checkpoint.ShardedCheckpoint(self._directory, model, keep=self._keep)
        found = opened.restore()
        if opened.has_restored:
            if "epoch" not in found:
                raise ValueError(
                    "The callback ShardedCheckpoint goes on from checkpoints that it or save(epoch=...) has saved: use "
                    f"another directory. Received: a checkpoint in {str(self._directory)!r}, saved with {found}"
                )
            arguments["initial_epoch"] = max(found["epoch"], arguments.get("initial_epoch", 0))
        self._epoch = arguments.get("initial_epoch", 0)
        self._checkpoint, self._prepared, self._restored = opened, model, opened.has_restored

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Refuses a list of callbacks that was made after `fit` had been called."""
        if self._checkpoint is None:
            raise ValueError(
                "This ShardedCheckpoint was made after Python had looked up model.fit: write callbacks = [...] in a line "
                "before. Received: model.fit(callbacks=[ShardedCheckpoint(...)])"
            )
        self._since = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keras counts batches anew."""
        self._epoch, self._last, self._is_cut = epoch, 0, False

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Before the first step: restores what local steps hold, which are made only now."""
        self._restore_local_steps()
        super().on_train_batch_begin(batch, logs)  # calls on_batch_begin of a subclass

    def _restore_local_steps(self) -> None:
        if self._local_callback is None or self._checkpoint is None:
            return
        local = self._local_callback.current
        if local is not self._checkpoint.local_steps:
            self._checkpoint.local_steps = local
            if self._restored:
                self._checkpoint.restore()
                self._restored = False

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves if it is time."""
        done = _compat.batches_done(self.model, batch)
        self._since, self._last = self._since + done - self._last, done
        is_due = self._save_freq != "epoch" and self._since >= self._save_freq
        # Sums of gradients are each rank's own, and mean nothing on another number of ranks.
        if is_due and passes_done(self.model.optimizer) == 0:
            self._save(self._epoch)
        steps = self.params.get("steps")
        self._is_cut = self.model.stop_training and (steps is None or done < steps)
        super().on_train_batch_end(batch, logs)  # calls on_batch_end of a subclass

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves the weights that training goes on with, not the averages that `SwapEMAWeights` has put into the model."""
        self._epoch = epoch if self._is_cut else epoch + 1
        with callback_list.weights_of_training(self._others, epoch):
            self._save(self._epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Saves if the end of `fit` has changed the weights, and waits until the last checkpoint is written."""
        if self._checkpoint is not None:
            if self._last and self._ends_otherwise():
                self._save(self._epoch)
            self._checkpoint.wait()
        self._is_over = True

    def _ends_otherwise(self) -> bool:
        """Whether the end of `fit` may have changed weights of a rank. All ranks call it, and get the same."""
        restored = any(
            getattr(each, "restore_best_weights", False) and getattr(each, "best_weights", None) is not None
            for each in self._others
        )
        (anywhere,) = all_numbers(restored, name=f"{type(self).__name__}.restored")
        averages = model_contents.ends_with_averages(self.model)
        return averages or self._local_callback is not None or any(anywhere.values())

    def _save(self, epoch: int) -> None:
        assert self._checkpoint is not None
        self._since = 0
        broken = not model_contents.can_train_on(self.model)
        (anywhere,) = all_numbers(broken, name=f"{type(self).__name__}.broken")
        if any(anywhere.values()):
            warn_once(
                "ShardedCheckpoint saves nothing while weights are NaN or infinite, or the state of an optimizer is NaN: a "
                "program that runs again goes on from the checkpoints before. Lower the learning rate, and add "
                "keras.callbacks.TerminateOnNaN() to fit's callbacks."
            )
        else:
            self._checkpoint.save(epoch=epoch)
