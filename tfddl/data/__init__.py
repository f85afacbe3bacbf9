"""Shards of data: each rank trains on its own, and all shards have the same size."""

from tfddl.data.arrays import shard_arrays
from tfddl.data.py_dataset import ShardedPyDataset
from tfddl.data.shard import shard
from tfddl.data.steps import steps_per_epoch

__all__ = ["ShardedPyDataset", "shard", "shard_arrays", "steps_per_epoch"]
