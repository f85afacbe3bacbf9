"""The callbacks with Horovod's arguments."""

from __future__ import annotations

from typing import Any

from tfddl.keras import callbacks
from tfddl.keras.callbacks import LearningRateScheduleCallback as LearningRateScheduleCallback
from tfddl.keras.callbacks import LearningRateWarmupCallback as LearningRateWarmupCallback
from tfddl.runtime.log import warn_once


class BroadcastGlobalVariablesCallback(callbacks.BroadcastGlobalVariablesCallback):
    """See `tfddl.callbacks.BroadcastGlobalVariablesCallback`. `device` changes nothing.

    As in Horovod, the optimizer need not be distributed: a warning says that each rank trains alone. A subclass or an
    instance with an `on_batch_end` of its own may register local variables there in the first step. Then the broadcast
    comes in that call, where it calls Horovod's method, or after it.
    """

    _works = False

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__(root_rank, local_variables)

    def check_distributed(self) -> bool:
        """See the base class."""
        try:
            return super().check_distributed()
        except ValueError as error:
            warn_once(str(error))
            return False

    def waits_for_first_batch(self) -> bool:
        """See the base class."""
        plain = BroadcastGlobalVariablesCallback.on_batch_end
        return getattr(self.on_batch_end, "__func__", None) is not plain

    def on_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """After the first step: broadcasts."""
        self._works = True
        self.after_batch(batch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Calls `on_batch_end`, as Keras does."""
        self._works = False
        self.on_batch_end(batch, logs)
        if not self._works:
            self.after_batch(batch)


class MetricAverageCallback(callbacks.MetricAverageCallback):
    """See `tfddl.callbacks.MetricAverageCallback`. `device` changes nothing."""

    def __init__(self, device: str = "") -> None:
        super().__init__()


class BestModelCheckpoint(callbacks.BestModelCheckpoint):
    """See `tfddl.callbacks.BestModelCheckpoint`. As in Horovod, the program sets `filepath` after the callback is made."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str = "epoch",
    ) -> None:
        ending = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(f"best{ending}", monitor, verbose, save_weights_only, mode, save_freq)
