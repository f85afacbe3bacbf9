"""The device of a reduction: the GPU of its tensors, or the CPU if NCCL has no such reduction."""

from __future__ import annotations

import contextlib

import tensorflow as tf

from tfddl import _compat
from tfddl.ops.constants import Adasum, Average, Sum
from tfddl.ops.dtypes import FLOATS

GPU_DTYPES = (*FLOATS, "int8", "int32", "int64", "uint8", "uint32", "uint64")
"""The dtypes that NCCL can reduce. Collectives that only move data take every dtype."""


def runs_on_gpus(op: int, dtype: str, *factors: float) -> bool:
    """Whether NCCL has this reduction.

    Args:
        op: See `tfddl.allreduce`.
        dtype: The name of a dtype.
        *factors: The factors before and after the reduction.
    """
    if op == Adasum or dtype not in GPU_DTYPES:
        return False
    scaled = any(factor != 1 for factor in factors)
    if op == Average or (op == Sum and scaled):
        return dtype in FLOATS
    return not scaled


def device_for(op: int, dtype: str, *factors: float) -> contextlib.AbstractContextManager[None]:
    """The context in which to make the op of a reduction. If it places the op on the CPU, TensorFlow copies the tensors.

    The args are those of `runs_on_gpus`.
    """
    if runs_on_gpus(op, dtype, *factors) or not _compat.sees_gpus():
        return contextlib.nullcontext()
    return tf.device("CPU:0")
