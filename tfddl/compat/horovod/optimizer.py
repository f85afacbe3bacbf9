"""`DistributedOptimizer` with the arguments of `horovod.tensorflow`, `horovod.tensorflow.keras` and `horovod.keras`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfddl.compat.horovod.private_api import add_private_api
from tfddl.compat.horovod.tape import without_devices
from tfddl.keras import optimizer as optimizers
from tfddl.ops.compression import Compression
from tfddl.ops.constants import Average
from tfddl.runtime.process_sets import ProcessSet, global_process_set


@tf.autograph.experimental.do_not_convert  # the converted function would have a local variable more
def DistributedOptimizerOfTensorFlow(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """See `tfddl.DistributedOptimizer`. `use_locking` and the devices change nothing."""
    return _distributed(**locals())


@tf.autograph.experimental.do_not_convert  # the converted function would have a local variable more
def DistributedOptimizerOfKeras(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """See `tfddl.DistributedOptimizer`. The devices change nothing."""
    return _distributed(**locals())


@tf.autograph.experimental.do_not_convert  # the converted function would have a local variable more
def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """See `tfddl.PartialDistributedOptimizer`. The devices change nothing."""
    return add_private_api(optimizers.PartialDistributedOptimizer(**without_devices(locals())))


def _distributed(use_locking: bool = False, **arguments: Any) -> Any:
    distributed = optimizers.DistributedOptimizer(**without_devices(arguments))
    if isinstance(distributed, tf.compat.v1.train.Optimizer):
        if not hasattr(distributed, "_optimizer"):  # a loss scale optimizer has one
            distributed._optimizer = distributed  # Horovod wraps the optimizer, and tfddl changes it
        return distributed
    return add_private_api(distributed)
