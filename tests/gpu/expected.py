"""Reductions by NumPy, with which the programs for GPUs compare those of NCCL."""

import numpy as np

import tfddl as hvd
from tests.ops.support import arrays, mean, numpy_type, total

REDUCED = {
    hvd.Sum: total,
    hvd.Average: mean,
    hvd.Min: lambda parts: np.min(parts, 0),
    hvd.Max: lambda parts: np.max(parts, 0),
    hvd.Product: lambda parts: np.prod(parts, 0).astype(parts[0].dtype),
}


def positive(size, dtype):
    """The inputs of all ranks, without negative numbers, which unsigned dtypes lack."""
    return [np.abs(part).astype(numpy_type(dtype)) for part in arrays(size, "float64")]
