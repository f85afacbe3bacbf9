"""A call of allreduce or reducescatter, of one tensor or of several: the parts that both have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfddl.ops.collective import check_list, name_of
from tfddl.ops.compression import run_compressed
from tfddl.ops.dtypes import check_factor, check_factors, check_op
from tfddl.ops.grouped import in_groups
from tfddl.runtime.process_sets import ProcessSet, id_of


class ReductionCall:
    """The checked arguments of one call, and the steps from the user's tensors to the native op.

    Args:
        kind: The public function, for names and error messages.
        op: See `tfddl.allreduce`.
        prescale: Multiplies every rank's tensor before the reduction.
        postscale: Multiplies the result.
        compression: See `tfddl.allreduce`.
        process_set: The ranks that take part.

    Raises:
        TypeError: `process_set` is no ProcessSet, or a factor no number.
        ValueError: `op` is not supported, or `process_set` is not part of the job.
    """

    operations: ClassVar[Collection[int]]
    native_op: ClassVar[Callable[..., list[tf.Tensor]]]

    def __init__(
        self,
        kind: str,
        op: int,
        prescale: float,
        postscale: float,
        compression: Any,
        process_set: ProcessSet,
    ) -> None:
        self.kind = kind
        self.number = id_of(process_set, kind)
        self.op = check_op(kind, op, self.operations)
        self.prescale = check_factor(kind, "prescale_factor", prescale)
        self.postscale = check_factor(kind, "postscale_factor", postscale)
        self.compression = compression
        self.process_set = process_set

    def single(self, tensor: Any, name: str | None, ignore_name_scope: bool) -> Any:
        """Reduces one tensor."""
        prepared = self._prepared(tensor)
        return self.reduce([prepared], name_of(self.kind, name, ignore_name_scope, self.number), "")[0]

    def grouped(self, tensors: Sequence[Any], name: str | None, ignore_name_scope: bool) -> list[Any]:
        """Reduces several tensors together, those of one dtype as one."""
        check_list(self.kind, tensors)
        if all(tensor is None for tensor in tensors):
            return list(tensors)
        group = name_of(self.kind, name, ignore_name_scope, self.number)
        return in_groups(
            tensors,
            self._prepared,
            lambda members, suffix, context: self.reduce(members, group + suffix, context),
        )

    def prepare(self, value: Any) -> Any:
        """Converts one argument to a tensor that the native op takes."""
        raise NotImplementedError

    def reduce(self, tensors: list[Any], name: str, context: str) -> list[Any]:
        """Reduces prepared tensors of one dtype.

        Args:
            tensors: At least one.
            name: The name on which ranks agree.
            context: Further fields of the signature; see `native._attributes`.
        """
        return run_compressed(
            lambda compressed: type(self).native_op(
                compressed,
                self.op,
                name,
                prescale=self.prescale,
                postscale=self.postscale,
                context=context,
                process_set=self.number,
            ),
            tensors,
            self.compression,
        )

    def _prepared(self, value: Any) -> Any:
        tensor = self.prepare(value)
        check_factors(self.kind, tensor.dtype, self.op, self.prescale, self.postscale)
        return tensor
