"""The names of the values that a compression keeps from step to step, and these values for any number of ranks.

The mean of the gradients that all ranks send in the end depends on two sums only: the mean over the ranks of the parts that
they have not sent, and the parts of the means that owners of slices have not sent. So a rank that begins with both sums
together carries on for any number of ranks, and nothing is lost with a rank that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl.ops.allgather import allgather
from tfddl.ops.allreduce import allreduce
from tfddl.ops.compression import StatefulCompressor

EQUAL = "equal"
"""Values that are equal on all ranks."""
UNSENT = "unsent"
"""The part of its gradients that a rank has not sent, in the shape of the gradients."""
UNSENT_MEANS = "unsent_means"
"""The part of the means that the owner of a slice has not sent, `[rows of the slice, ...]`. The slices of all ranks, one
after the other, have the shape of the `UNSENT` with the same number."""


def named(kind: str, values: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """The values by names that tell their kind: `unsent.0`."""
    return {f"{kind}.{index}": value for index, value in enumerate(values)}


def for_any_ranks(
    own: Mapping[str, Any],
    mean: Callable[[str], np.ndarray],
    joined: Callable[[str], np.ndarray],
) -> dict[str, np.ndarray]:
    """The values with which each rank may go on, whatever the number of ranks.

    Args:
        own: This rank's values, by names such as `0.DistributedOptimizer.0.unsent.0`, in an order that all ranks share.
        mean: Returns the mean over the ranks of the values of a name.
        joined: Returns the values of a name of all ranks, one after the other.

    Returns:
        Values for `StatefulCompressor.resume`, equal on all ranks.
    """
    found = {}
    for name, value in own.items():
        state, kind, index = name.rsplit(".", 2)
        slices = f"{state}.{UNSENT_MEANS}.{index}"
        if kind == UNSENT:
            found[name] = mean(name) + (joined(slices) if slices in own else 0.0)
        elif kind == UNSENT_MEANS:
            found[name] = np.zeros([0, *value.shape[1:]], np.float32)  # part of the sum above
        else:
            found[name] = np.array(value)
    return found


def of_the_job(compression: StatefulCompressor) -> dict[str, np.ndarray]:
    """The present values of a compression, for any number of ranks. All ranks call it, after the same step.

    The values for process sets other than that of all ranks are left out.
    """
    own = compression.named_variables(of_all=True)

    def mean(name: str) -> np.ndarray:
        return np.array(allreduce(tf.convert_to_tensor(own[name]), name=f"residuals.{name}"))

    def joined(name: str) -> np.ndarray:
        return np.array(allgather(tf.convert_to_tensor(own[name]), name=f"residuals.{name}"))

    return {**compression.waiting, **for_any_ranks(own, mean, joined)}
