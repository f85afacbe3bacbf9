"""Checks of arguments and the choice of a name, for all collectives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import tensorflow as tf

from tfddl.ops import names
from tfddl.ops.dtypes import check_dtype
from tfddl.runtime import fork, xla
from tfddl.runtime.job import current

_Collective = TypeVar("_Collective", bound=Callable[..., Any])


def without_devices(collective: _Collective) -> _Collective:
    """Makes a collective refuse Horovod's arguments for devices with a clear error."""

    @functools.wraps(collective)
    def call(*arguments: Any, **options: Any) -> Any:
        for name in ("device_dense", "device_sparse"):
            if name in options:
                raise TypeError(
                    f"tfddl's {collective.__name__} has no `{name}`, unlike Horovod's: it reduces where the tensor lies. "
                    f"Leave it out. Received: {name}={options[name]!r}"
                )
        return collective(*arguments, **options)

    return cast(_Collective, call)


def check_callable(kind: str) -> None:
    """Refuses a call in a process or a function that can run no collective.

    Raises:
        ValueError: tfddl is not initialized, or XLA traces the call and the XLA kernels are missing.
    """
    current(kind)
    fork.check(kind)
    xla.require(kind)


def check_list(kind: str, values: Any) -> None:
    """Refuses an argument of a grouped collective that is no list.

    Raises:
        TypeError: `values` is no list or tuple.
    """
    if not isinstance(values, (list, tuple)):
        raise TypeError(
            f"{kind} takes a list of tensors; use hvd.{kind.removeprefix('grouped_')} for one. Received: {values!r}"
        )


def prepare(value: Any, kind: str, op: int | None = None) -> tf.Tensor:
    """Converts an argument to a tensor that the collective takes.

    Raises:
        ValueError: See `check_callable`.
        TypeError: The dtype is not supported, or the value is no dense tensor.
    """
    check_callable(kind)
    _check_dense(kind, value)
    tensor = tf.convert_to_tensor(value)
    check_dtype(kind, tensor.dtype, op)
    return tensor


def _check_dense(kind: str, value: Any) -> None:
    """Refuses values that are no dense tensors and that TensorFlow's own conversion refuses with another message."""
    call = f"hvd.{kind.removeprefix('grouped_')}"
    if value is None:
        raise TypeError(
            f"{kind} takes a tensor: a gradient is None if the loss does not depend on its variable. Leave it out on all "
            "ranks; a list for hvd.grouped_allreduce may have None. Received: None"
        )
    if isinstance(value, tf.IndexedSlices):
        raise TypeError(
            f"{kind} takes dense tensors. Received: tf.IndexedSlices. Convert it with tf.convert_to_tensor(...)."
        )
    if isinstance(value, tf.RaggedTensor):
        raise TypeError(
            f"{kind} takes dense tensors: pass x.to_tensor(), or call {call} for x.flat_values and for each of "
            f"x.nested_row_lengths(). Received: {type(value).__name__}"
        )
    if isinstance(value, tf.SparseTensor):
        raise TypeError(
            f"{kind} takes dense tensors: pass tf.sparse.to_dense(x). Received: {type(value).__name__}"
        )
    if isinstance(value, Mapping):
        raise TypeError(
            f"{kind} takes dense tensors: pass each value of a dict by itself, as tf.nest.map_structure({call}, x) does. "
            f"Received: {type(value).__name__} of {', '.join(map(repr, value))}"
        )


def prepare_rows(value: Any, kind: str, op: int | None = None) -> tf.Tensor:
    """Like `prepare`, for a collective that splits or joins tensors along the first dimension.

    Raises:
        ValueError: Also when the tensor is a scalar.
    """
    tensor = prepare(value, kind, op)
    if tensor.shape.rank == 0:
        raise ValueError(
            f"{kind} needs a tensor with at least one dimension: make one with tf.reshape(x, [1]). "
            f"Received: a scalar of {tensor.dtype.name}"
        )
    return tensor


def name_of(kind: str, name: str | None, ignore_name_scope: bool = False, process_set: int = 0) -> str:
    """The name on which ranks agree: the user's name, or one that follows from the function around the call.

    Raises:
        TypeError: The user's name is no text.
    """
    if name is None:
        return names.unique(kind, process_set)
    if not isinstance(name, str):
        raise TypeError(
            f"name of {kind.rstrip('_')} is a text that is equal on all ranks: pass a str. Received: name={name!r}"
        )
    if not tf.executing_eagerly() and not ignore_name_scope:
        scope = tf.compat.v1.get_default_graph().get_name_scope()
        name = f"{scope}/{name}" if scope else name
    return names.numbered(name, process_set)
