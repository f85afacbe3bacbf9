"""broadcast_variables and broadcast_: all ranks get the weights of one rank."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.ops import names
from tfddl.ops.broadcast import broadcast
from tfddl.ops.collective import name_of
from tfddl.runtime.process_sets import ProcessSet, global_process_set, id_of

_MARK = "_tfddl_broadcast"
_WHOLE = "_tfddl_whole"

_AT_ONCE = 32
"""Collectives of a list of variables that wait for the other ranks at a time."""

_ELEMENTS_AT_ONCE = 1 << 24
"""Elements of whole values that are gathered together: 64 MiB of float32."""

T = TypeVar("T")


class Whole(Protocol):
    """A value of which each rank has a slice in a variable.

    Attributes:
        shape: The shape of the whole.
        ranks: The number of ranks that share it.
    """

    shape: tuple[int, ...]
    ranks: int

    def value(self, number: int) -> np.ndarray:
        """The whole value. All ranks that share it call this at the same point.

        Args:
            number: Its number among the values that are gathered together; names the collective.
        """

    def assign(self, value: Any) -> None:
        """Gives the variable this rank's slice of a whole value."""


def has_broadcast(variables: Iterable[Any]) -> bool:
    """Whether one of the functions below has broadcast one of the variables."""
    return any(hasattr(_compat.tf_variable(variable), _MARK) for variable in variables)


def has_broadcast_in(graph: Any) -> bool:
    """Whether a graph of TF1 has an operation of the functions below."""
    return hasattr(graph, _MARK)


def leave_to_its_rank(variable: Any, whole: Whole) -> None:
    """Marks a variable that holds this rank's slice of a whole. No broadcast changes it."""
    setattr(_compat.tf_variable(variable), _WHOLE, whole)


def whole_of(variable: Any) -> Whole | None:
    """The whole of which a variable holds this rank's slice; None for a variable that is whole itself."""
    found: Whole | None = getattr(_compat.tf_variable(variable), _WHOLE, None)
    return found


def whole_values(variables: Iterable[Any], plain: Callable[[Any], T]) -> Iterator[T | np.ndarray]:
    """The values of variables, of which ranks may share some as slices. All ranks read all of them.

    Args:
        variables: The variables.
        plain: Gives the value of a variable that is whole itself.

    Yields:
        One value for each variable; an array if the variable holds a slice.
    """
    pairs = [(variable, whole_of(variable)) for variable in variables]
    values = _gathered(whole for _, whole in pairs if whole is not None)
    for variable, whole in pairs:
        yield plain(variable) if whole is None else next(values)


def _gathered(wholes: Iterable[Whole]) -> Iterator[np.ndarray]:
    """The whole values, in this order. Few at a time are in memory: `_AT_ONCE`, of `_ELEMENTS_AT_ONCE` elements."""
    together: list[Callable[[], np.ndarray]] = []
    elements = 0
    for number, whole in enumerate(wholes):
        size = math.prod(whole.shape)
        if together and (len(together) == _AT_ONCE or elements + size > _ELEMENTS_AT_ONCE):
            yield from _at_once(together)
            together, elements = [], 0
        together.append(functools.partial(whole.value, number))
        elements += size
    yield from _at_once(together)


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> tf.Operation | None:
    """Assigns every variable the value that it has on `root_rank`.

    The state of a `tfddl.ShardedOptimizer`, of which each rank has its own slice, stays as it is.

    Args:
        variables: TensorFlow or Keras variables, in the same order on all ranks.
        root_rank: The rank whose values all ranks take: its rank in the job, with any process set.
        process_set: See `allreduce`.

    Returns:
        In a graph of TF1 the operation, to be run in a session; else None.

    Raises:
        TypeError: A variable's dtype is not supported, or `variables` is no list.
        tf.errors.FailedPreconditionError: On all ranks, when the variables' shapes or dtypes differ.

    Example:
        On 2 ranks:

        >>> weight = tf.Variable([1.0 + hvd.rank()])  # [1] and [2]
        >>> hvd.broadcast_variables([weight], root_rank=0)
        >>> weight.numpy()
        array([1.], dtype=float32)
    """
    if _compat.is_variable(variables) or not isinstance(variables, Iterable):
        raise TypeError(
            "broadcast_variables takes a list of variables: pass [variable], or model.weights. "
            f"Received: variables={variables!r}"
        )
    group = "broadcast_variables"
    if _in_tf1_graph():  # sessions may run two graphs at a time
        group = names.unique(group, id_of(process_set, group))
    assigned = _assign_roots_values(variables, root_rank, group, process_set, ignore_name_scope=False)
    return tf.group(*assigned) if _in_tf1_graph() else None


@tf.autograph.experimental.do_not_convert
def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Assigns every variable the value that it has on `root_rank`, and returns the values.

    Args:
        variables: TensorFlow or Keras variables, in the same order on all ranks.
        root_rank: The rank whose values all ranks take: its rank in the job, with any process set.
        name: See `allreduce`.
        process_set: See `allreduce`.

    Returns:
        The new values. In a graph of TF1 the assignments run when the values are computed.

    Raises:
        TypeError: A member of `variables` is no variable, or its dtype is not supported.
        tf.errors.FailedPreconditionError: On all ranks, when the variables' shapes or dtypes differ.
    """
    targets = list(variables)
    for target in targets:
        if not hasattr(target, "assign"):
            raise TypeError(
                f"broadcast_ takes variables: use broadcast for a tensor. Received: {type(target).__name__}"
            )
    group = name_of("broadcast_", name, process_set=id_of(process_set, "broadcast_"))
    assigned = _assign_roots_values(targets, root_rank, group, process_set, ignore_name_scope=True)
    return [tf.identity(value) for value in (assigned if _in_tf1_graph() else targets)]


def _assign_roots_values(
    variables: Iterable[Any], root_rank: int, group: str, process_set: ProcessSet, *, ignore_name_scope: bool
) -> list[Any]:
    """Returns the results of the assignments. All broadcasts come before the first assignment."""
    variables = [variable for variable in variables if whole_of(variable) is None]
    for variable in variables:
        setattr(_compat.tf_variable(variable), _MARK, True)
    if variables and _in_tf1_graph():
        setattr(tf.compat.v1.get_default_graph(), _MARK, True)
    tensors = [tf.convert_to_tensor(variable) for variable in variables]
    calls = [
        functools.partial(broadcast, tensor, root_rank, f"{group}.{index}", ignore_name_scope, process_set)
        for index, tensor in enumerate(tensors)
    ]
    values = _at_once(calls) if tf.executing_eagerly() else [call() for call in calls]
    return [variable.assign(value) for variable, value in zip(variables, values, strict=True)]


def _at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """The results of eager calls, which wait for the other ranks together. One after the other, 300 took 14 s at 20 ms.

    Their order does not matter, because each has a name of its own. When one fails, the rest still run: the other ranks
    may wait for them already. The error of the first that failed is raised.
    """
    device = _compat.eager_device()

    def run(call: Callable[[], T]) -> T:
        with tf.device(device):
            return call()

    with ThreadPoolExecutor(_AT_ONCE, "tfddl-variables") as threads:
        futures = [threads.submit(run, call) for call in calls]
    return [future.result() for future in futures]


def _in_tf1_graph() -> bool:
    return not tf.executing_eagerly() and not tf.compat.v1.get_default_graph().building_function
