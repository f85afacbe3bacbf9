"""Callbacks for `fit`: `hvd.callbacks.X`."""

from tfddl.keras.callbacks.best_model_checkpoint import BestModelCheckpoint
from tfddl.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from tfddl.keras.callbacks.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from tfddl.keras.callbacks.local_steps import DiLoCo, LocalSGD
from tfddl.keras.callbacks.metric_average import MetricAverageCallback
from tfddl.keras.callbacks.rank_zero_only import rank_zero_only
from tfddl.keras.callbacks.sharded_checkpoint import ShardedCheckpoint
from tfddl.keras.callbacks.stop import StopTogetherCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "DiLoCo",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "LocalSGD",
    "MetricAverageCallback",
    "ShardedCheckpoint",
    "StopTogetherCallback",
    "rank_zero_only",
]
