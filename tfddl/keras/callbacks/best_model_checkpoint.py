"""BestModelCheckpoint: one file with the best model of the job."""

import math
import os
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.keras.consistency.model_contents import sharded_optimizers
from tfddl.ops.barrier import barrier
from tfddl.ops.exchange import all_numbers
from tfddl.runtime import basics
from tfddl.runtime.agreement import by_rank, differ
from tfddl.runtime.log import warn
from tfddl.runtime.process_sets import ProcessSet, check_type, global_process_set, members

ModelCheckpoint: Any = _compat.keras().callbacks.ModelCheckpoint


class BestModelCheckpoint(ModelCheckpoint):
    """Saves the model at the end of each epoch that is the best so far.

    Give it to all ranks, behind `MetricAverageCallback`, so that the whole job's metric decides which epoch is the best. The
    first rank writes the file. When `fit` returns on any rank, the file is complete. A file takes its name when it is
    complete: if the disk is full or the job is killed in the middle, the best file before it stays.

    The model is saved with a plain optimizer, and loads without tfddl.

    A job that resumes does not know the best value of the job before, and overwrites its file in the first epoch. Pass that
    value as `initial_value_threshold`.

    Args:
        filepath: Ends in `.keras`, or `.weights.h5` with `save_weights_only`; may contain `{epoch}` and names of metrics.
            On a disk that the first rank can write to.
        monitor: The name of a metric. Defaults to `"val_loss"`.
        verbose: 1 prints a line for each file, on the first rank. Defaults to `0`.
        save_weights_only: Whether to save weights alone. Defaults to `False`.
        mode: `"min"`, `"max"`, or `"auto"`, by the name of the metric. Defaults to `"auto"`.
        save_freq: `"epoch"`; between batches no rank knows the whole job's metrics.
        initial_value_threshold: Only a better metric than this is saved, in the first epoch too. Defaults to `None`.
        process_set: The ranks that train the model. Defaults to all.

    Raises:
        ValueError: For another `save_freq`, or a `filepath` with another ending.
    """

    def __init__(
        self,
        filepath: Any,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str = "epoch",
        initial_value_threshold: float | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if save_freq != "epoch":
            raise ValueError(
                "BestModelCheckpoint compares models at the end of epochs, where MetricAverageCallback gives the whole "
                f"job's metrics: leave save_freq out. Received: save_freq={save_freq!r}"
            )
        super().__init__(
            filepath,
            monitor,
            verbose=0,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            initial_value_threshold=initial_value_threshold,
        )
        self.process_set = check_type(process_set)
        self.best: Any  # of all ranks: an elastic job may go on without the one that saves
        self._prints = bool(verbose)
        self._warned = False

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Warns if the ranks see different numbers. The first rank saves; all collect the state of a ShardedOptimizer."""
        logs = dict(logs or {})
        mine = logs.get(self.monitor)
        value = math.nan if mine is None else float(mine)
        name = f"{type(self).__name__}.monitor"
        values, known = all_numbers(value, mine is not None, name=name, process_set=self.process_set)
        first = members(self.process_set)[0]
        if differ(values) and not self._warned:
            self._warned = True
            warn(
                f"BestModelCheckpoint goes by rank {first}'s {self.monitor}, and other ranks have "
                f"another value: put MetricAverageCallback before it, on all ranks. Received: {by_rank(values)}",
                self.process_set,
            )
        sharded = self.process_set.included() and sharded_optimizers(self.model)
        if sharded:  # all of them save, or none
            logs.pop(self.monitor, None)
            logs.update({self.monitor: values[first]} if known[first] else {})
        if self._writes() or sharded:
            self._save(epoch, logs)
        elif known[first]:
            self._follow(values[first])

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Waits until the file is written."""
        super().on_train_end(logs)
        barrier(process_set=self.process_set)

    def _save(self, epoch: int, logs: dict[str, Any]) -> None:
        best, path = self.best, super()._get_file_path(epoch, None, logs)
        part = self._get_file_path(epoch, None, logs)
        replaces = self._writes() and part != path
        try:
            super().on_epoch_end(epoch, logs)
            if replaces and tf.io.gfile.exists(part):
                tf.io.gfile.rename(part, path, overwrite=True)
        except Exception as error:
            if replaces:
                error.add_note(
                    f"BestModelCheckpoint could not write '{path}'. The file that was there before is whole."
                )
                if tf.io.gfile.exists(part):
                    tf.io.gfile.remove(part)
            raise
        if self._prints and self._writes() and self.monitor in logs:
            better = (
                f"improved to {self.best:.5f}, saved to {path}" if self.best != best else "did not improve"
            )
            print(f"\nEpoch {epoch + 1}: {self.monitor} {better}", flush=True)

    def _get_file_path(self, epoch: int, batch: int | None, logs: dict[str, Any]) -> str:
        """The file that Keras writes, beside the one that the user named. The ending decides its format."""
        path: str = super()._get_file_path(epoch, batch, logs)
        folder, name = os.path.split(path)
        # Keras 2 writes a folder, or several files, under a name with another ending.
        return os.path.join(folder, f".part-{name}") if name.endswith((".keras", ".h5")) else path

    def _follow(self, value: float) -> None:
        """Keeps the best value on a rank that does not save."""
        if self.monitor_op is None:
            self._set_monitor_op()
        if self.best is None or self.monitor_op(value, self.best):
            self.best = value

    def _writes(self) -> bool:
        return basics.rank() == members(self.process_set)[0]
