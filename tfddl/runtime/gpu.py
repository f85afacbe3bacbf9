"""The GPU that a process uses."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tfddl.runtime import basics

if TYPE_CHECKING:
    import tensorflow as tf

# With this variable NCCL accepts several ranks on one GPU. They work, but are no faster.
_SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"
_MASK = "CUDA_VISIBLE_DEVICES"


def set_visible_gpu(*, memory_growth: bool = True) -> tf.config.PhysicalDevice | None:
    """Gives this process the GPU with its `local_rank()` as index, and hides the other GPUs from TensorFlow.

    Call it after `init()` and before TensorFlow uses a GPU. Without a GPU it does nothing. If a scheduler shows each process
    one GPU, by `CUDA_VISIBLE_DEVICES`, the process takes this one.

    Args:
        memory_growth: Whether TensorFlow allocates memory of the GPU as needed, instead of all at once.

    Returns:
        The `tf.config.PhysicalDevice`, or None if this host has no GPU.

    Raises:
        RuntimeError: The host runs more processes than TensorFlow shows GPUs, or TensorFlow has used them already.
        ValueError: tfddl is not initialized.
    """
    import tensorflow as tf

    index, processes = basics.local_rank(), basics.local_size()
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    if index >= len(gpus) and not _may_share(len(gpus)):
        raise RuntimeError(
            f"rank {basics.rank()} has no GPU: its host runs {processes} processes, of which it has local_rank {index}, and "
            f"TensorFlow sees {len(gpus)} GPU(s). Start at most one process for each GPU (tfddlrun -np, or -H host:slots). "
            f"Received: {_MASK}={os.environ.get(_MASK)!r}"
        )
    mine = gpus[index % len(gpus)]
    try:
        tf.config.set_visible_devices(mine, "GPU")
        if memory_growth:
            tf.config.experimental.set_memory_growth(mine, True)
    except RuntimeError as error:
        raise RuntimeError(
            f"set_visible_gpu() comes too late on rank {basics.rank()}: call it right after hvd.init(), before "
            f"anything else of TensorFlow. {error}"
        ) from error
    return mine


def _may_share(count: int) -> bool:
    """Whether more processes than GPUs are intended: NCCL allows it, or a scheduler has masked all GPUs but one."""
    mask = os.environ.get(_MASK, "")
    masked = count == 1 and mask != "" and "," not in mask
    return masked or os.environ.get(_SHARING) == "1"
