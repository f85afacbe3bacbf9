"""State of layers that follows the rows of each rank, such as moving statistics."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl.gradients.checksum import checksum
from tfddl.ops.allgather import allgather
from tfddl.ops.allreduce import grouped_allreduce
from tfddl.ops.constants import Average
from tfddl.runtime.process_sets import ProcessSet


def differing(variables: Sequence[Any], name: str, process_set: ProcessSet) -> list[Any]:
    """The variables that differ between ranks, so that frozen weights do not travel. All ranks call it, and get the same.

    Args:
        variables: At least one, in the same order on all ranks.
        name: Names the collective.
        process_set: The ranks that take part.
    """
    sums = [checksum(tf.convert_to_tensor(each).numpy()) for each in variables]
    all_sums = allgather(tf.constant([sums], tf.int64), name=name, process_set=process_set).numpy()
    differ = (all_sums != all_sums[0]).any(axis=0)
    return [each for each, differs in zip(variables, differ, strict=True) if differs]


def average(variables: Sequence[Any], name: str, process_set: ProcessSet) -> None:
    """Gives all ranks the means of floating-point variables. All ranks call it.

    Args:
        variables: The same on all ranks; may be none.
        name: Names the collective.
        process_set: The ranks that take part.
    """
    if not variables:
        return
    values = list(map(tf.convert_to_tensor, variables))
    # As they are: a variance must not be rounded below zero.
    means = grouped_allreduce(values, op=Average, process_set=process_set, name=name)
    for variable, mean in zip(variables, means, strict=True):
        variable.assign(mean)
