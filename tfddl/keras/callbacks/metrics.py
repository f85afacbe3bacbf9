"""MetricAverageCallback: metrics of the whole job at the end of each epoch."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.keras.exchange import all_rows, differing_lists, quoted
from tfddl.keras.log import warn_once
from tfddl.ops.allreduce import allreduce
from tfddl.ops.constants import Average
from tfddl.runtime.process_sets import ProcessSet, check_type, global_process_set

Callback: Any = _compat.keras().callbacks.Callback


class MetricAverageCallback(Callback):
    """Averages the metrics of an epoch over all ranks.

    Changes `logs` in place, so that the callbacks after it in the list, and the history, see the averages:
    put it before `EarlyStopping`, `ModelCheckpoint` and `ReduceLROnPlateau`. It is the plain mean of the
    ranks' values: exact for means over equal amounts of data, an approximation for others such as AUC. A
    warning says so when the ranks have validated different numbers of batches.

    Args:
        process_set: Whose ranks are averaged; "all ranks" means those. Defaults to all.

    Raises:
        ValueError: At the end of an epoch, on every rank, if not all ranks have the same metrics; for example
            if only one was given validation data.
    """

    def __init__(self, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.process_set = check_type(process_set)
        self._validated = 0

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the batches of the validation."""
        self._validated = batch + 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages the numbers in `logs`."""
        logs = {} if logs is None else logs
        keys = sorted(key for key, value in logs.items() if _is_number(value))
        different = differing_lists(keys, f"{type(self).__name__}.keys", self.process_set)
        if different is not None:
            raise ValueError(
                "MetricAverageCallback needs the same metrics on all ranks: give every rank validation "
                "data, or none. Received: "
                + "; ".join(f"rank {rank}: {found}" for rank, found in different.items())
            )
        if keys:
            values = tf.constant([float(logs[key]) for key in keys], tf.float64)
            name = f"{type(self).__name__}.values"
            averages = allreduce(values, op=Average, name=name, process_set=self.process_set).numpy()
            logs.update(zip(keys, averages.tolist(), strict=True))
        self._compare_validation()

    def _compare_validation(self) -> None:
        counts = all_rows([self._validated], f"{type(self).__name__}.validated", self.process_set)[:, 0]
        if len(set(counts)) > 1:
            warn_once(
                "The ranks validate different numbers of batches, but MetricAverageCallback gives all ranks "
                "the same weight, so that the val_ metrics are approximations: give each rank as many. "
                f"Received batches of {quoted(map(int, counts), self.process_set)}",
                self.process_set,
            )
        self._validated = 0


def _is_number(value: Any) -> bool:
    array = np.asarray(value)
    return array.ndim == 0 and (array.dtype.kind in "iuf" or array.dtype.name == "bfloat16")
