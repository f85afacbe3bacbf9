"""The state of a compression of gradients from step to step, on each rank for itself.

With error feedback (arXiv 1809.07599, 1905.13727 algorithm 2) a rank adds to its gradient what it has not sent before, and
remembers what it has not sent now:

    M = g + e;   the ranks combine what each has sent of M;   e = M - sent

Gradients and residuals are those of the unscaled loss: under loss scaling `DistributedLossScale` reduces inside the branch
of the steps that all ranks take. A step whose results are not finite on all ranks leaves the state as it was.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.gradients.gradient_options import GradientOptions
from tfddl.gradients.reduced_marks import leave_own
from tfddl.ops.compression import StatefulCompressor, Traffic
from tfddl.runtime.process_sets import by_id, members, serial


@dataclasses.dataclass(frozen=True)
class Reduction:
    """One reduction of dense gradients.

    Attributes:
        tensors: The gradients; their shapes may be unknown.
        variables: One for each gradient, or None.
        owner: Names the optimizer or the tape.
        name: Names this reduction's collectives.
        together: Slots of the gradients that travel together.
        context: On what else the ranks have to agree.
        options: How to combine; its compression is a `StatefulCompressor`.
        process_set: The number of the process set.
        allreduce: Reduces tensors as the options say, without compression: gets the tensors, the slots that travel together,
            and a name.
    """

    tensors: list[tf.Tensor]
    variables: Sequence[Any] | None
    owner: str
    name: str
    together: Sequence[Sequence[int]]
    context: str
    options: GradientOptions
    process_set: int
    allreduce: Callable[[list[tf.Tensor], Sequence[Sequence[int]], str], list[tf.Tensor]]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(members(by_id(self.process_set)))


@dataclasses.dataclass
class State:
    """The state of a compression for the gradients of one owner.

    Attributes:
        name: Tells it from the other states of the compression, also on other ranks and when the program runs again.
        initial: Returns the first values of the variables.
        variables: This rank's own variables, by names that say what they hold: see `residuals`.
        shape: On which number of ranks, and on what else beside the gradients, their shapes depend; empty if on nothing.
        traffic: The bytes of a step.
    """

    name: str
    initial: Callable[[], dict[str, np.ndarray]]
    variables: dict[str, tf.Variable]
    shape: tuple[int, ...]
    traffic: Traffic = dataclasses.field(default_factory=lambda: Traffic(0, 0))


def is_compressible(tensor: tf.Tensor) -> bool:
    """Whether a gradient is of real numbers, and its shape is known when it is traced."""
    return tensor.dtype.is_floating and tensor.shape.is_fully_defined()


def state_of(
    reduction: Reduction, initial: Callable[[], dict[str, np.ndarray]], shape: tuple[int, ...]
) -> State:
    """The state of the gradients of a reduction; a new one at their first step, and for another shape.

    Args:
        reduction: The reduction.
        initial: Returns the first values of the state's variables, by name: see `residuals`.
        shape: See `State`.

    Raises:
        ValueError: In a graph of TF1.
    """
    compressor = reduction.options.compression
    assert isinstance(compressor, StatefulCompressor)
    key = serial(reduction.process_set), reduction.owner, *_identities(reduction)
    state = compressor._states.get(key)
    if state is None or state.shape != shape:
        # Outside of the function that is being traced, as each trace of it and each other function uses the same state.
        with tf.init_scope():
            if not tf.executing_eagerly():
                raise ValueError(
                    f"compression={compressor!r} keeps errors from step to step, which a graph of TF1 cannot: train in "
                    "eager mode or in a tf.function, or use Compression.fp16 or bf16. "
                    f"Received: the graph of {reduction.owner}"
                )
            name = _new_name(compressor, key[:2]) if state is None else state.name
            values = compressor.waiting_for(name, initial())
            variables = {each: tf.Variable(value, trainable=False) for each, value in values.items()}
        leave_own(list(variables.values()))
        state = compressor._states[key] = State(name, initial, variables, shape)
    return state


def update(finite: tf.Tensor, pairs: Sequence[tuple[tf.Variable, tf.Tensor]]) -> None:
    """Assigns new values to a state.

    Args:
        finite: A scalar of bool, the same on all ranks: whether to assign.
        pairs: Variables and their next values.
    """
    for variable, value in pairs:
        variable.assign(tf.where(finite, value, variable))


def all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Whether all numbers of all tensors are finite, a scalar of bool."""
    each = [tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors if tensor.dtype.is_floating]
    return tf.reduce_all(tf.stack(each)) if each else tf.constant(True)


def traffic(reduction: Reduction, given: Sequence[tf.Tensor], plain: Sequence[tf.Tensor] = ()) -> Traffic:
    """The bytes of a step.

    Args:
        reduction: The reduction.
        given: What travels instead of the gradients, to the ranks that add up and back.
        plain: The gradients that travel as they are.
    """
    ways = 2 * (reduction.size - 1) / reduction.size
    return Traffic(ways * (_bytes(given) + _bytes(plain)), ways * _bytes(reduction.tensors))


def _bytes(tensors: Sequence[tf.Tensor]) -> int:
    return sum((each.shape.num_elements() or 0) * each.dtype.size for each in tensors)


def _new_name(compressor: StatefulCompressor, owner: tuple[int, str]) -> str:
    """A name such as `0.DistributedOptimizer.1`: the process set, the kind of owner, and a number among its states.

    Owners of one kind make their states in one order on all ranks, and whenever the program runs.
    """
    states = [_kind(*each[:2]) for each in compressor._states]
    return f"{_kind(*owner)}.{states.count(_kind(*owner))}"


def _kind(process_set: int, owner: str) -> str:
    return f"{process_set}.{re.sub(r'[.][0-9]+(?=/|$)', '', owner)}"


def _identities(reduction: Reduction) -> list[Any]:
    """The owners of the gradients: variables, or slots if there are none."""
    variables = reduction.variables or [None] * len(reduction.tensors)
    return [
        _compat.reference(variable) if _compat.is_variable(variable) else (slot, str(tensor.shape))
        for slot, (variable, tensor) in enumerate(zip(variables, reduction.tensors, strict=True))
    ]
