"""Gives all ranks the same state of layers that are the program's own, such as a moving average."""

from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.keras.consistency.callback_list import Callback
from tfddl.keras.statistics import average, differing
from tfddl.ops.variables import broadcast_variables
from tfddl.runtime.agreement import first_few
from tfddl.runtime.log import warn_once
from tfddl.runtime.process_sets import global_process_set

_NAME = "DataParallel.states"


class StatesCallback(Callback):
    """Averages the weights that are not trained and differ between ranks, before validation and at the end of an epoch.

    Integers, which have no mean, become those of rank 0. It stands in front of the callbacks that save.
    """

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Before the validation of `fit`."""
        self._make_equal()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """After the validation, which may change state, too."""
        self._make_equal()

    def _make_equal(self) -> None:
        weights = list(self.model.non_trainable_weights)
        found = differing(weights, f"{_NAME}.checksums", global_process_set) if weights else []
        if not found:
            return
        warn_once(
            "DataParallel: a layer of this program changes weights by its inputs. During an epoch each process follows its "
            "own rows; before validation and at the end of an epoch all processes take the mean over processes. For the "
            "numbers of one process, let the layer average over all rows: hvd.allreduce(tf.reduce_mean(x, 0)). "
            f"Received: weights that differ: {first_few([_compat.path(each) for each in found])}"
        )
        floating = [each for each in found if tf.as_dtype(each.dtype).is_floating]
        average(floating, f"{_NAME}.mean", global_process_set)
        others = [each for each in found if not tf.as_dtype(each.dtype).is_floating]
        if others:
            broadcast_variables(others, 0)
