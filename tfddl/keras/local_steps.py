"""LocalSGD and DiLoCo: ranks train alone for some steps, then exchange what they have found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.gradients import quantized
from tfddl.ops.allreduce import grouped_allreduce
from tfddl.ops.compression import Compression, check_compression
from tfddl.ops.constants import Average
from tfddl.runtime.process_sets import ProcessSet, check_type, global_process_set


class LocalSGD:
    """Averages variables over the ranks after every so many steps (local SGD, arXiv 1805.09767).

    Between two exchanges each rank trains by itself, with a plain optimizer whose state stays its own. So the network
    carries one gradient's worth of bytes for `every` steps. All ranks take the same number of steps.

        hvd.broadcast_variables(model.variables, root_rank=0)
        average = hvd.LocalSGD(model.trainable_variables, every=16)
        for x, y in data:
            train_step(x, y)
            average.step()
        average.finish()

    Args:
        variables: The trainable variables of Keras or TensorFlow, in the same order and equal on all ranks.
        every: The number of steps between two exchanges.
        statistics: Variables that are averaged too, such as the moving statistics of BatchNormalization. Those of no
            floating-point dtype stay each rank's own. Defaults to none.
        compression: How values travel; see `Compression`.
        process_set: The ranks that exchange. Defaults to all.

    Attributes:
        steps: The number of steps since the last exchange.

    Raises:
        ValueError: There are no variables, or `every` is not positive.

    Example:
        On 2 ranks:

        >>> weight = tf.Variable([0.0])
        >>> average = hvd.LocalSGD([weight], every=2)
        >>> for step in range(2):
        ...     _ = weight.assign_add([1.0 + 2 * hvd.rank()])  # 1 and 3
        ...     average.step()
        >>> weight.numpy()
        array([4.], dtype=float32)
    """

    def __init__(
        self,
        variables: Sequence[Any],
        every: int,
        *,
        statistics: Sequence[Any] = (),
        compression: Any = Compression.none,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self._locals = list(variables)
        kind = type(self).__name__
        if not self._locals:
            raise ValueError(f"{kind} needs the variables that are trained: pass a list. Received: none")
        check_every(every, kind)
        self.every, self.steps = every, 0
        self.process_set = check_type(process_set)
        self._statistics = [each for each in statistics if tf.as_dtype(each.dtype).is_floating]
        self._compression = check_compression(compression)
        self._name = f"{kind}.exchange"
        self._exchanges = 0

    def step(self, steps: int = 1) -> None:
        """Counts steps that have been taken, and exchanges if it is time. All ranks call it after each step.

        Args:
            steps: How many.
        """
        self.steps += steps
        if self.steps >= self.every:
            self._exchange()

    def finish(self) -> None:
        """Exchanges what is left at the end of the training. All ranks call it."""
        if self.steps:
            self._exchange()

    def _exchange(self) -> None:
        self.steps, self._exchanges = 0, self._exchanges + 1
        options = {"op": Average, "process_set": self.process_set}
        if self._statistics:  # as they are: a variance must not be rounded below zero
            values = list(map(tf.convert_to_tensor, self._statistics))
            means = grouped_allreduce(values, name=f"{self._name}.statistics", **options)
            for variable, mean in zip(self._statistics, means, strict=True):
                variable.assign(mean)
        if self._compression is Compression.int8:
            self._take(quantized.mean(self._outgoing(), self._name, self.process_set, self._exchanges))
        else:
            options["compression"] = self._compression
            self._take(grouped_allreduce(self._outgoing(), name=self._name, **options))

    def _outgoing(self) -> list[Any]:
        return [tf.convert_to_tensor(each) for each in self._locals]

    def _take(self, means: Sequence[Any]) -> None:
        for variable, mean in zip(self._locals, means, strict=True):
            variable.assign(mean)


class DiLoCo(LocalSGD):
    """Moves all ranks by one step of an outer optimizer after every so many local steps (DiLoCo, arXiv 2311.08105).

    All ranks keep theta, the weights after the last exchange. With theta_r, the weights of rank r after its local steps,
    the outer gradient is

        theta - mean over r of theta_r

    (algorithm 1 of the paper). The outer optimizer applies it to theta, from which all ranks go on. The paper's inner
    optimizer is AdamW, its outer one SGD with Nesterov momentum, and `every` is 500. With one rank this is SNOO (arXiv
    2510.15830). `every=1` with `SGD(1.0)` is the average of the weights, within rounding.

    Args:
        variables: See `LocalSGD`.
        every: See `LocalSGD`.
        outer_optimizer: An optimizer of Keras, for these variables alone. Defaults to
            `SGD(0.7, momentum=0.9, nesterov=True)`.
        statistics: See `LocalSGD`.
        compression: How the outer gradient travels; `hvd.Compression.fp16` or `bf16` halve its bytes, `int8` makes them a
            quarter.
        process_set: See `LocalSGD`.

    Attributes:
        steps: The number of steps since the last exchange.
        outer_variables: theta in float32 and the state of the outer optimizer, for a checkpoint. Equal on all ranks.

    Raises:
        ValueError: There are no variables, or `every` is not positive.
        TypeError: `outer_optimizer` is no optimizer of Keras.

    Example:
        On 2 ranks:

        >>> weight = tf.Variable([1.0])
        >>> diloco = hvd.DiLoCo([weight], every=1, outer_optimizer=keras.optimizers.SGD(0.5))
        >>> weight.assign_sub([2.0 * hvd.rank()]).numpy().shape  # the outer gradient is (0 + 2) / 2
        (1,)
        >>> diloco.step()
        >>> weight.numpy()
        array([0.5], dtype=float32)
    """

    def __init__(
        self,
        variables: Sequence[Any],
        every: int,
        outer_optimizer: Any = None,
        *,
        statistics: Sequence[Any] = (),
        compression: Any = Compression.none,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(
            variables, every, statistics=statistics, compression=compression, process_set=process_set
        )
        self._outer = new_outer_optimizer() if outer_optimizer is None else check_outer(outer_optimizer)
        self._theta = [
            _compat.new_variable(np.array(tf.cast(each, tf.float32)), f"theta_{index}")
            for index, each in enumerate(self._locals)
        ]
        _compat.build_optimizer(self._outer, self._theta)

    @property
    def outer_variables(self) -> list[Any]:
        """theta and the state of the outer optimizer."""
        return [*self._theta, *_compat.optimizer_variables(self._outer)]

    def _outgoing(self) -> list[Any]:
        return [
            tf.convert_to_tensor(theta) - tf.cast(tf.convert_to_tensor(each), tf.float32)
            for theta, each in zip(self._theta, self._locals, strict=True)
        ]

    def _take(self, means: Sequence[Any]) -> None:
        self._outer.apply_gradients(zip(means, self._theta, strict=True))
        for variable, theta in zip(self._locals, self._theta, strict=True):
            variable.assign(tf.cast(tf.convert_to_tensor(theta), variable.dtype))


def new_outer_optimizer() -> Any:
    """The outer optimizer of the paper (arXiv 2311.08105, section 3)."""
    return _compat.keras().optimizers.SGD(0.7, momentum=0.9, nesterov=True)


def check_outer(optimizer: Any) -> Any:
    """Returns `optimizer` if it is one of Keras."""
    if not hasattr(optimizer, "apply_gradients"):
        raise TypeError(
            "outer_optimizer takes an optimizer of Keras: pass keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True), for "
            f"example. Received: {optimizer!r}"
        )
    return optimizer


def check_every(every: Any, kind: str) -> None:
    """Raises a ValueError if `every` is no positive whole number."""
    if not isinstance(every, (int, np.integer)) or every < 1:
        raise ValueError(
            f"{kind} exchanges after every so many steps: pass every=1 or more. Received: every={every!r}"
        )
