"""The options of a gradient computation: arguments of DistributedOptimizer and of DistributedGradientTape."""

import copy
import dataclasses
import math
import numbers
from typing import Any, ClassVar, Self, TypedDict

import numpy as np

from tfddl.gradients.gradient_groups import checked_groups
from tfddl.ops.compression import Compression, Compressor, check_compression, is_stateful, name_of
from tfddl.ops.constants import NAMES, Adasum, Average, Sum
from tfddl.runtime.log import warn_deprecated
from tfddl.runtime.process_sets import ProcessSet, check_type, global_process_set


class GradientKeywords(TypedDict, total=False):
    """The keyword arguments of `GradientOptions`, for editors and type checkers."""

    op: int
    compression: type[Compressor] | Compressor
    sparse_as_dense: bool
    gradient_predivide_factor: float
    groups: Any
    process_set: ProcessSet
    scale_local_gradients: bool
    num_groups: int
    device_dense: str
    device_sparse: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientOptions:
    """How one optimizer or tape combines its gradients: the arguments that both take, checked.

    Attributes:
        op: `tfddl.Average`, `tfddl.Sum` or `tfddl.Adasum`.
        compression: The `Compressor` for gradients while they travel.
        sparse_as_dense: Whether a `tf.IndexedSlices` becomes a dense tensor first.
        gradient_predivide_factor: Every rank divides by it before the sum, and multiplies by it after the sum.
        groups: Gradients that travel together; None leaves them to buckets. See `gradient_groups.checked_groups`.
        process_set: The ranks that combine their gradients.
        scale_local_gradients: Whether local gradients, which are not combined, are divided by the number of ranks.
        merge_slices: Whether rows of the same index of a `tf.IndexedSlices` are added up. A subclass may say no.
        num_groups: Deprecated, for `groups`; 0 for none.
        device_dense: Only `""`.
        device_sparse: Only `""`.

    Raises:
        ValueError: For another `op`; for Adasum with a compression that keeps its errors; for a factor that is not a
            positive number, or not 1 with another `op` than Average; for wrong groups; or for a device.
        TypeError: If `compression` is no compressor, `process_set` no `ProcessSet`, or a bool is neither True nor False.
    """

    op: int = Average
    compression: type[Compressor] | Compressor = Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    groups: Any = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    merge_slices: ClassVar[bool] = True
    num_groups: dataclasses.InitVar[int] = 0
    device_dense: dataclasses.InitVar[str] = ""
    device_sparse: dataclasses.InitVar[str] = ""

    @classmethod
    def of(cls, function: str, keywords: GradientKeywords) -> Self:
        """The options that a public function was called with.

        Raises:
            TypeError: For an unknown keyword, and as the class does.
            ValueError: As the class does.
        """
        known = GradientKeywords.__annotations__
        for name in keywords:
            if name not in known:
                raise TypeError(
                    f"{function}() got an unexpected keyword argument {name!r}. "
                    f"Choose from these options of gradients: {', '.join(known)}."
                )
        return cls(**keywords)

    def __post_init__(self, num_groups: int, device_dense: str, device_sparse: str) -> None:
        _refuse_devices(device_dense=device_dense, device_sparse=device_sparse)
        checked = {
            "op": check_op(self.op),
            "compression": check_compression(self.compression),
            "sparse_as_dense": check_bool("sparse_as_dense", self.sparse_as_dense),
            "gradient_predivide_factor": _checked_factor(self.gradient_predivide_factor, self.op),
            "groups": checked_groups(_one_of(num_groups, self.groups)),
            "process_set": check_type(self.process_set),
            "scale_local_gradients": check_bool("scale_local_gradients", self.scale_local_gradients),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen
        if self.op == Adasum and is_stateful(self.compression):
            raise ValueError(
                "op=tfddl.Adasum combines gradients that are not rounded: use Compression.none, fp16 or bf16 with it. "
                f"Received: compression={name_of(self.compression)}"
            )

    def with_state(self) -> Self:
        """These options, with an instance of the compression if it keeps errors from step to step."""
        if isinstance(self.compression, type) and is_stateful(self.compression):
            found = copy.copy(self)
            object.__setattr__(found, "compression", self.compression())
            return found
        return self


def check_bool(name: str, value: Any) -> bool:
    """Returns the value of an option that is True or False.

    Raises:
        TypeError: If it is anything else.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is True or False: pass one of them. Received: {name}={value!r}")
    return bool(value)


def check_op(op: int) -> int:
    """Returns `op` if gradients can be combined with it.

    Raises:
        ValueError: If it is none of `tfddl.Average`, `tfddl.Sum` and `tfddl.Adasum`.
    """
    if op not in (Average, Sum, Adasum):
        raise ValueError(
            "Gradients are combined with op=tfddl.Average, op=tfddl.Sum or op=tfddl.Adasum: pass one of them. "
            f"Received: op={NAMES.get(op, op)}"
        )
    return op


def _checked_factor(factor: float, op: int) -> float:
    if not isinstance(factor, numbers.Real) or not 0 < factor < math.inf:
        raise ValueError(
            "gradient_predivide_factor is a positive number, by which gradients are divided before they are added up: pass "
            f"hvd.size() ** 0.5, or leave it out. Received: gradient_predivide_factor={factor!r}"
        )
    if factor != 1 and op != Average:
        raise ValueError(
            "gradient_predivide_factor splits the division of op=tfddl.Average: leave it out with another op. "
            f"Received: gradient_predivide_factor={factor!r}, op={NAMES.get(op, op)}"
        )
    return float(factor)


def _one_of(num_groups: int, groups: Any) -> Any:
    """`groups`, or its deprecated spelling `num_groups`."""
    if isinstance(num_groups, int) and num_groups == 0:
        return groups
    if groups is not None:
        raise ValueError(
            "Give `groups` or the deprecated `num_groups`, not both. "
            f"Received: num_groups={num_groups!r}, groups={groups!r}"
        )
    warn_deprecated("`num_groups` is deprecated; use groups=")
    return num_groups


def _refuse_devices(**devices: Any) -> None:
    for name, device in devices.items():
        if device:
            raise ValueError(
                f"Gradients are combined on the device that has computed them: leave {name} out. "
                f"Received: {name}={device!r}"
            )
