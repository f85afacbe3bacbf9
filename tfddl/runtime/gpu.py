"""The GPU of a process: the first `init()` pins the process to one GPU of its host, and hides the others from TensorFlow.

The environment stays as it is: programs for Horovod say `gpus[hvd.local_rank()]`, so each process has to list all GPUs.
"""

from __future__ import annotations

import logging
import os
import platform
from typing import TYPE_CHECKING

from tfddl._environment import switched_on
from tfddl.runtime.job import Job, current, process

if TYPE_CHECKING:
    import tensorflow as tf

_PIN = "TFDDL_PIN_GPU"
_MASK = "CUDA_VISIBLE_DEVICES"
# With this variable NCCL accepts several ranks on one GPU. They work, but are no faster.
_SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"

_logger = logging.getLogger("tfddl")  # not by log.py: log.py imports basics.py, which imports this file


def pin_once(job: Job) -> None:
    """Pins this process at its first `init()`. A later `init()`, as after the loss of a rank, finds TensorFlow started.

    A process that is alone on its host keeps all GPUs. So does each process if `TFDDL_PIN_GPU` is 0.

    Raises:
        ValueError: `TFDDL_PIN_GPU` is neither 0 nor 1.
    """
    wanted = switched_on(_PIN)
    if process.pinning_is_done:
        return
    process.pinning_is_done = True
    if job.local_size > 1 and wanted:
        _pin(job)


def set_visible_gpu(*, memory_growth: bool = True) -> tf.config.PhysicalDevice | None:
    """Gives this process the GPU with its `local_rank()` as index, and hides the other GPUs from TensorFlow.

    `init()` pins each process too. This call also lets memory grow, returns the GPU, and raises where `init()` warns.

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

    job = current("set_visible_gpu")
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    if job.local_rank >= len(gpus) and not _may_share(len(gpus)):
        raise RuntimeError(
            f"rank {job.rank} has no GPU: its host runs {job.local_size} processes, of which it has local_rank "
            f"{job.local_rank}, and TensorFlow sees {len(gpus)} GPU(s). Start at most one process for each GPU (tfddlrun "
            f"-np, or -H host:slots). Received: {_MASK}={os.environ.get(_MASK)!r}"
        )
    mine = gpus[job.local_rank % len(gpus)]
    try:
        tf.config.set_visible_devices(mine, "GPU")
        if memory_growth:
            tf.config.experimental.set_memory_growth(mine, True)
    except RuntimeError as error:
        raise RuntimeError(
            f"set_visible_gpu() comes too late on rank {job.rank}: call it right after hvd.init(), before "
            f"anything else of TensorFlow. {error}"
        ) from error
    return mine


def _pin(job: Job) -> None:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if tf.config.get_visible_devices("GPU") != gpus:
        return  # the program has chosen
    if gpus and job.local_size > len(gpus) and not _may_share(len(gpus)):
        _warn_on_this_host(
            job,
            f"TensorFlow sees {len(gpus)} GPU(s) for the {job.local_size} ranks on host {platform.node()}, so hvd.init() "
            "has not given each rank a GPU of its own. Start at most one process for each GPU (tfddlrun -np, or "
            f"-H host:slots). To train on CPUs, set {_MASK}=-1. To silence this warning, set {_PIN}=0. "
            f"Received: {_MASK}={os.environ.get(_MASK)!r}",
        )
    elif len(gpus) > 1:
        _show_one(job, gpus[job.local_rank % len(gpus)])


def _show_one(job: Job, gpu: tf.config.PhysicalDevice) -> None:
    import tensorflow as tf

    try:
        tf.config.set_visible_devices(gpu, "GPU")
    except RuntimeError as error:
        _warn_on_this_host(
            job,
            f"hvd.init() comes too late to give each of the {job.local_size} ranks on host {platform.node()} a GPU of its "
            f"own: call it before anything else of TensorFlow. To silence this warning, set {_PIN}=0. "
            f"Received from TensorFlow: {error}",
        )


def _may_share(gpus: int) -> bool:
    """Whether more processes than GPUs are intended: NCCL allows it, or a scheduler has masked all GPUs but one."""
    mask = os.environ.get(_MASK, "")
    masked = gpus == 1 and mask != "" and "," not in mask
    return masked or os.environ.get(_SHARING) == "1"


def _warn_on_this_host(job: Job, message: str) -> None:
    """Warns once: the ranks of a host run the same program, so the first speaks for all."""
    if job.local_rank == 0:
        _logger.warning(message)
