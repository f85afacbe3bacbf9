"""The callbacks with Horovod's arguments."""

from __future__ import annotations

from typing import Any

from tfddl.keras import callbacks
from tfddl.keras.callbacks import LearningRateScheduleCallback as LearningRateScheduleCallback
from tfddl.keras.callbacks import LearningRateWarmupCallback as LearningRateWarmupCallback
from tfddl.runtime.log import warn_once


class BroadcastGlobalVariablesCallback(callbacks.BroadcastGlobalVariablesCallback):
    """See `tfddl.callbacks.BroadcastGlobalVariablesCallback`. `device` changes nothing.

    As in Horovod, the optimizer need not be distributed: a warning says that each rank trains alone.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__(root_rank, local_variables)

    def check_distributed(self) -> bool:
        """See the base class."""
        try:
            return super().check_distributed()
        except ValueError as error:
            warn_once(str(error))
            return False


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
