"""How gradients are combined: what the arguments of DistributedOptimizer and DistributedGradientTape come to."""

import dataclasses
import math
import numbers
import warnings
from typing import Any

import numpy as np

from tfddl.gradients.gradient_groups import Groups, checked_groups
from tfddl.ops.compression import Compression, Compressor, check_compression
from tfddl.ops.constants import NAMES, Adasum, Average, Sum
from tfddl.runtime.process_sets import ProcessSet, check_type, global_process_set


@dataclasses.dataclass(frozen=True)
class Options:
    """How one optimizer or tape combines its gradients.

    Attributes:
        op: `tfddl.Average`, `tfddl.Sum` or `tfddl.Adasum`.
        compression: What gradients travel as.
        sparse_as_dense: Whether a `tf.IndexedSlices` becomes a dense tensor first.
        gradient_predivide_factor: Every rank divides by it before the sum, and multiplies after it.
        groups: Which gradients travel together; None leaves that to the sizes of buckets.
        process_set: Whose ranks combine them.
        scale_local_gradients: Whether gradients that are not combined are divided by the number of ranks.
    """

    op: int = Average
    compression: type[Compressor] = Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    groups: Groups = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True


def checked(
    *,
    op: int,
    compression: Any,
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    num_groups: int,
    groups: Any,
    process_set: ProcessSet,
    scale_local_gradients: bool,
    device_dense: str,
    device_sparse: str,
) -> Options:
    """The options, once their values are known to have a meaning.

    Raises:
        ValueError: For another `op`, a factor that is no positive number or comes with another `op` than Average,
            groups that are none, or a device.
        TypeError: If `compression` is no compressor, `process_set` no `ProcessSet`, or what is on or off neither.
    """
    _refuse_devices(device_dense=device_dense, device_sparse=device_sparse)
    return Options(
        check_op(op),
        check_compression(compression),
        check_bool("sparse_as_dense", sparse_as_dense),
        _checked_factor(gradient_predivide_factor, op),
        checked_groups(_one_of(num_groups, groups)),
        check_type(process_set),
        check_bool("scale_local_gradients", scale_local_gradients),
    )


def check_bool(name: str, value: Any) -> bool:
    """Returns the value of an option that is on or off.

    Raises:
        TypeError: If it is anything else.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is True or False. Received: {name}={value!r}")
    return bool(value)


def check_op(op: int) -> int:
    """Returns `op` if gradients can be combined with it.

    Raises:
        ValueError: If it is none of `tfddl.Average`, `tfddl.Sum` and `tfddl.Adasum`.
    """
    if op not in (Average, Sum, Adasum):
        raise ValueError(
            "Gradients are combined with op=tfddl.Average, op=tfddl.Sum or op=tfddl.Adasum. "
            f"Received: op={NAMES.get(op, op)}"
        )
    return op


def _checked_factor(factor: float, op: int) -> float:
    if not isinstance(factor, numbers.Real) or not 0 < factor < math.inf:
        raise ValueError(
            "gradient_predivide_factor is a positive number: gradients are divided by it before they are added up, "
            f"and the sum is multiplied by it. Received: gradient_predivide_factor={factor!r}"
        )
    if factor != 1 and op != Average:
        raise ValueError(
            "gradient_predivide_factor splits the division of op=tfddl.Average: leave it out with another op. "
            f"Received: gradient_predivide_factor={factor!r}, op={NAMES.get(op, op)}"
        )
    return float(factor)


def _one_of(num_groups: int, groups: Any) -> Any:
    """`groups`, or its older spelling, of which 0 means none."""
    if isinstance(num_groups, int) and num_groups == 0:
        return groups
    if groups is not None:
        raise ValueError(
            "Give `groups` or the deprecated `num_groups`, not both. "
            f"Received: num_groups={num_groups!r}, groups={groups!r}"
        )
    warnings.warn("`num_groups` is deprecated; use groups=", DeprecationWarning, stacklevel=4)
    return num_groups


def _refuse_devices(**devices: Any) -> None:
    for name, device in devices.items():
        if device:
            raise ValueError(
                f"Gradients are combined on the device that has computed them: leave {name} out. "
                f"Received: {name}={device!r}"
            )
