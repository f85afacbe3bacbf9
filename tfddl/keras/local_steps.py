"""LocalSGD and DiLoCo: ranks train alone for some steps, then exchange what they have found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl.gradients import quantized
from tfddl.keras.fragments import (
    Fragment,
    check_fragments,
    check_outer,
    constrain,
    divided,
    new_outer_optimizer,
)
from tfddl.keras.statistics import average, differing
from tfddl.ops.allreduce import grouped_allreduce
from tfddl.ops.compression import Compression, check_compression, is_int8, is_stateful
from tfddl.ops.constants import Average
from tfddl.runtime.process_sets import ProcessSet, check_type, global_process_set


class LocalSGD:
    """Averages variables over the ranks after every so many steps (local SGD, arXiv 1805.09767).

    Between two exchanges each rank trains by itself, with a plain optimizer whose state stays its own. So the network
    carries one gradient's worth of bytes for `every` steps. All ranks take the same number of steps. A constraint of a
    variable, such as a layer's `kernel_constraint`, is applied to the average, too.

        hvd.broadcast_variables(model.weights, root_rank=0)
        average = hvd.LocalSGD(model.trainable_variables, every=16)
        for x, y in data:
            train_step(x, y)
            average.step()
        average.finish()

    Args:
        variables: The trainable variables of Keras or TensorFlow, in the same order and equal on all ranks.
        every: The number of steps between two exchanges.
        statistics: Variables that are averaged too, such as the moving statistics of BatchNormalization. Those of no
            floating-point dtype stay each rank's own. Only those that differ between ranks travel. Defaults to none.
        compression: How values travel; see `Compression`.
        process_set: The ranks that exchange. Defaults to all.

    Attributes:
        steps: The number of steps since the last exchange.

    Raises:
        TypeError: `variables` is a model, or `compression` is none for single values.
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
        kind = type(self).__name__
        if hasattr(variables, "trainable_variables"):
            raise TypeError(
                f"{kind} takes variables: pass model.trainable_variables, and in fit use hvd.callbacks.{kind}. "
                f"Received: {variables!r}"
            )
        self._locals = list(variables)
        if not self._locals:
            raise ValueError(f"{kind} needs the variables that are trained: pass a list. Received: none")
        check_every(every, kind)
        self.every, self.steps = every, 0
        self.process_set = check_type(process_set)
        self._statistics = [each for each in statistics if tf.as_dtype(each.dtype).is_floating]
        self._compression = check_rounding(compression, kind)
        self._name = f"{kind}.exchange"
        self._exchanges = 0

    def begin(self) -> None:
        """Begins at the values that the variables have now, equal on all ranks, as after the load of a checkpoint."""
        self.steps = 0

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

    def average(self) -> None:
        """Gives all ranks the mean of the values that their variables have now. All ranks call it, when training ends."""
        LocalSGD._exchange(self)

    def progress(self) -> dict[str, Any]:
        """How far this object is between two exchanges, for a checkpoint: what JSON takes, equal on all ranks."""
        return {"steps": self.steps, "exchanges": self._exchanges}

    def resume(self, progress: dict[str, Any]) -> None:
        """Goes on from what `progress` has returned; `checkpoint_variables` get their values later."""
        self.steps, self._exchanges = progress["steps"], progress["exchanges"]

    def checkpoint_variables(self) -> list[Any]:
        """Variables for a checkpoint, equal on all ranks."""
        return []

    def _exchange(self) -> None:
        self.steps = 0
        for variable, mean in zip(self._locals, self._mean(self._locals), strict=True):
            variable.assign(mean)
            constrain(variable, getattr(variable, "constraint", None))
        self._exchange_statistics()

    def _mean(self, values: Sequence[Any]) -> Sequence[Any]:
        self._exchanges += 1
        tensors = list(map(tf.convert_to_tensor, values))
        if is_int8(self._compression):
            return quantized.mean(tensors, self._name, self.process_set, self._exchanges)
        return grouped_allreduce(
            tensors, op=Average, compression=self._compression, process_set=self.process_set, name=self._name
        )

    def _exchange_statistics(self) -> None:
        if self._statistics:
            variables = differing(self._statistics, f"{self._name}.checksums", self.process_set)
            average(variables, f"{self._name}.statistics", self.process_set)


class DiLoCo(LocalSGD):
    """Moves all ranks by one step of an outer optimizer after every so many local steps (DiLoCo, arXiv 2311.08105).

    All ranks keep theta, the weights after the last exchange. With theta_r, the weights of rank r after its local steps,
    the outer gradient is

        theta - mean over r of theta_r

    (algorithm 1 of the paper). The outer optimizer applies it to theta, from which all ranks go on. Constraints of the
    variables are applied to theta, too. The paper's inner optimizer is AdamW, its outer one SGD with Nesterov momentum, and
    `every` is 500. With one rank this is SNOO (arXiv 2510.15830). `every=1` with `SGD(1.0)` is the average of the weights,
    within rounding.

    With `fragments`, `delay` and `mixing` it is Streaming DiLoCo (arXiv 2501.18512, algorithm 2): the variables are divided,
    and after every `every / fragments` steps another fragment begins its exchange, while training goes on. `delay` steps
    later the outer optimizer applies its gradient to theta, and a rank's weights become

        mixing * theta_r + (1 - mixing) * theta

    Args:
        variables: See `LocalSGD`.
        every: See `LocalSGD`.
        outer_optimizer: An optimizer of Keras, for these variables alone. Defaults to
            `SGD(0.7, momentum=0.9, nesterov=True)`. Each fragment has a copy of it.
        fragments: The number of parts of the variables that are exchanged one after the other. It divides `every`.
        delay: The number of steps that an exchange may take; less than `every / fragments`. Defaults to 0: training waits
            for it.
        mixing: How much of a rank's own weights stays, from 0 to 1. Defaults to 0; the paper has 0.5.
        statistics: See `LocalSGD`. They are exchanged with the last fragment.
        compression: How the outer gradient travels; `hvd.Compression.fp16` or `bf16` halve its bytes, `int8` makes them a
            quarter.
        process_set: See `LocalSGD`.

    Attributes:
        steps: The number of steps since the last exchange of all fragments.
        outer_variables: theta in float32 and the state of the outer optimizer, for a checkpoint. Equal on all ranks.

    Raises:
        ValueError: There are no variables, or fewer than fragments; `every` is not positive, or `fragments`, `delay` or
            `mixing` do not fit.
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
        fragments: int = 1,
        delay: int = 0,
        mixing: float = 0.0,
        statistics: Sequence[Any] = (),
        compression: Any = Compression.none,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(
            variables, every, statistics=statistics, compression=compression, process_set=process_set
        )
        check_fragments(every, fragments, delay, mixing)
        outer = new_outer_optimizer() if outer_optimizer is None else check_outer(outer_optimizer)
        self._fragments = [Fragment(part, outer) for part in divided(self._locals, fragments)]
        self._delay, self._mixing = delay, mixing
        # The number of a fragment, the step at which its exchange counts, and a function that waits for the result.
        self._under_way: tuple[int, int, Callable[[], Sequence[Any]]] | None = None
        self._background = ThreadPoolExecutor(1, "DiLoCo") if delay else None

    @property
    def outer_variables(self) -> list[Any]:
        """theta and the state of the outer optimizer, fragment after fragment."""
        return [variable for fragment in self._fragments for variable in fragment.outer_variables]

    def begin(self) -> None:
        """Begins at the values that the variables have now, equal on all ranks. The state of the outer optimizer stays."""
        super().begin()
        self._under_way = None
        for fragment in self._fragments:
            fragment.begin()

    def step(self, steps: int = 1) -> None:
        """Counts steps that have been taken; begins and ends exchanges if it is time. All ranks call it after each step.

        Args:
            steps: How many, at most `every / fragments`. An exchange that would begin or end within them does so behind
                them: with `steps_per_execution`, the last execution of an epoch may have taken fewer steps.
        """
        each = self.every // len(self._fragments)
        begun = self.steps // each
        self.steps += steps
        begins = self.steps // each > begun
        if self._under_way is not None and (begins or self.steps >= self._under_way[1]):
            self._end()
        if begins:
            number = self.steps // each - 1
            self._begin(number)
            if number + 1 == len(self._fragments):
                self.steps -= self.every
                self._exchange_statistics()

    def finish(self) -> None:
        """Exchanges all that is left at the end of the training; all ranks have the same weights then."""
        if self._under_way is not None:
            self._end()
        if self.steps or self._mixing or self._delay:
            for fragment in self._fragments:
                fragment.take(self._mean(fragment.outer_gradient()), 0.0)
            self._exchange_statistics()
        self.steps = 0

    def average(self) -> None:
        """See `LocalSGD.average`. An exchange under way counts no more, and theta has the old values until `begin`."""
        if self._under_way is not None:
            self._under_way[2]()
            self._under_way = None
        super().average()

    def progress(self) -> dict[str, Any]:
        """See `LocalSGD.progress`."""
        return {
            **super().progress(),
            "under_way": None if self._under_way is None else list(self._under_way[:2]),
        }

    def resume(self, progress: dict[str, Any]) -> None:
        """See `LocalSGD.resume`."""
        super().resume(progress)
        self._under_way = None
        if progress["under_way"] is not None:
            number, due = progress["under_way"]
            held = [tf.Variable(tf.zeros_like(each)) for each in self._fragments[number].outer_gradient()]
            self._under_way = number, due, lambda: held

    def checkpoint_variables(self) -> list[Any]:
        """theta, the state of the outer optimizer, and the result of an exchange under way, for which this waits."""
        if self._under_way is None:
            return self.outer_variables
        number, due, result = self._under_way
        held = [tf.Variable(each) for each in result()]
        self._under_way = number, due, lambda: held
        return [*self.outer_variables, *held]

    def _begin(self, number: int) -> None:
        fragment = self._fragments[number]
        gradient = fragment.outer_gradient()
        if self._background is None:
            fragment.take(self._mean(gradient), self._mixing)
            return
        due = self.steps % self.every + self._delay
        self._under_way = number, due, self._background.submit(self._mean, gradient).result

    def _end(self) -> None:
        assert self._under_way is not None
        number, _, result = self._under_way
        self._under_way = None
        self._fragments[number].take(list(map(tf.convert_to_tensor, result())), self._mixing)


def check_every(every: Any, kind: str) -> None:
    """Raises a ValueError if `every` is no positive whole number."""
    if not isinstance(every, (int, np.integer)) or every < 1:
        raise ValueError(
            f"{kind} exchanges after every so many steps: pass a whole number of 1 or more. Received: every={every!r}"
        )


def check_rounding(compression: Any, kind: str) -> Any:
    """Returns `compression` if it can round what travels. Raises a TypeError if not."""
    if not is_int8(compression) and is_stateful(check_compression(compression)):
        raise TypeError(
            f"{kind} rounds what travels: pass hvd.Compression.fp16, .bf16 or .int8, since others need the gradients of "
            f"each step. Received: compression={compression!r}"
        )
    return compression
