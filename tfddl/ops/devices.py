"""Where a reduction runs: on the GPU that its tensors lie on, or on the CPU where NCCL does not have it."""

from __future__ import annotations

import contextlib

import tensorflow as tf

from tfddl import _compat
from tfddl.ops.constants import Adasum, Average, Sum
from tfddl.ops.dtypes import FLOATS

GPU_DTYPES = (*FLOATS, "int8", "int32", "int64", "uint8", "uint32", "uint64")
"""What NCCL can add up. Collectives that only move data take every dtype."""


def runs_on_gpus(op: int, dtype: str, *factors: float) -> bool:
    """Whether NCCL has a reduction.

    Args:
        op: See `tfddl.allreduce`.
        dtype: A dtype's name.
        *factors: What the tensors are multiplied by, before or after.
    """
    if op == Adasum or dtype not in GPU_DTYPES:
        return False
    scaled = any(factor != 1 for factor in factors)
    if op == Average or (op == Sum and scaled):
        return dtype in FLOATS
    return not scaled


def device_for(op: int, dtype: str, *factors: float) -> contextlib.AbstractContextManager[None]:
    """A context in which the op of a reduction is made: TensorFlow copies the tensors if that is the CPU's.

    The args are those of `runs_on_gpus`.
    """
    if runs_on_gpus(op, dtype, *factors) or not _compat.sees_gpus():
        return contextlib.nullcontext()
    return tf.device("CPU:0")
