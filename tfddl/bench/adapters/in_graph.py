"""Parts of the adapters that use TensorFlow: a function with one collective, a step with gradients only, a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.bench import models
from tfddl.bench.adapters import Process, Way, Ways
from tfddl.bench.case import Case, count_wrong

Finish = Callable[[tf.GradientTape, tf.Tensor, Sequence[tf.Variable]], Any]
"""A function of tape, loss and variables that returns the gradients for the rest of the step."""


def one_thread() -> None:
    """Gives TensorFlow one thread within ops and one between them. Must precede all other use of TensorFlow."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def of_library(hvd: Any, process: Process, operations: Mapping[str, Callable[..., Any]]) -> Ways:
    """Joins the job of a library with Horovod's interface, and returns its ways.

    Args:
        hvd: The module of the library.
        process: This process.
        operations: Functions of a tensor and a name, by operation.
    """
    one_thread()
    hvd.init()

    averaged = through_tape(hvd)

    def way(case: Case) -> Way:
        if case.operation == "gradients":
            return step(case, process.rank, averaged, case.mean)
        if case.operation == "training":
            return Training(case, process.rank, averaged).way()
        if case.operation == "chain":
            run = operations["allreduce"]
            return chain(lambda t, link: run(t, f"bench.chain.{case.bytes}.{link}"), case, process.rank)
        run, name = operations[case.operation], f"bench.{case.operation}.{case.bytes}"
        return around(lambda t: run(t, name), case.values(process.rank), case.expected(process.rank))

    return way


def through_tape(hvd: Any) -> Finish:
    """Computes gradients by the library's `DistributedGradientTape`."""
    return lambda tape, loss, variables: hvd.DistributedGradientTape(tape).gradient(loss, variables)


def around(op: Callable[..., tf.Tensor], x: Any, expected: Any, *others: Any) -> Way:
    """A tf.function with one op of `x` and `others`. On the CPU its call returns when the result is there."""
    function = tf.function(op)
    tensors = [tf.constant(each) for each in (x, *others)]
    last: list[tf.Tensor] = tensors[:1]

    def call() -> None:
        last[0] = function(*tensors)

    return Way(call, lambda: count_wrong(last[0].numpy(), expected))


def chain(
    op: Callable[[tf.Tensor, int], tf.Tensor], case: Case, rank: int, *, sums: bool = True, run: Any = None
) -> Way:
    """A tf.function with `case.links` allreduces, each of which needs the result of the one before.

    After each of them, a subtraction makes the input of this rank out of the sum.

    Args:
        op: An allreduce of a tensor, with the number of the link.
        case: The data.
        rank: The rank.
        sums: Whether `op` adds up the tensors of all ranks, or leaves them as they are.
        run: Calls its first argument, a function, with the tuple of its arguments. Defaults to a plain call.
    """
    x = case.values(rank)
    expected = case.expected(rank) if sums else x

    def links(t: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        for link in range(case.links - 1):
            t = op(t, link) - others
        return op(t, case.links - 1)

    # `others` is an argument, since TensorFlow would remove the subtraction of a constant 0.
    return around(lambda *tensors: run(links, tensors) if run else links(*tensors), x, expected, expected - x)


def step(case: Case, rank: int, finish: Finish, expected: float) -> Way:
    """A step that only computes gradients, by `finish`.

    The loss is `scale * sum of number * sum of elements` over the variables, numbered from 1: all elements of a gradient are
    `scale * number`, at almost no cost. Were two gradients equal, TensorFlow would merge Horovod's ops on them.

    Args:
        case: The shapes of the gradients.
        rank: The rank.
        finish: Computes the gradients.
        expected: The elements of the first result.
    """
    variables = [tf.Variable(tf.zeros(shape)) for shape in case.shapes]
    run = tf.function(lambda scale: finish(*_recorded(variables, scale), variables))
    scale = tf.constant(case.scale(rank))
    last: list[Sequence[tf.Tensor]] = [[]]

    def call() -> None:
        last[0] = run(scale)

    def wrong() -> int:
        return sum(count_wrong(t.numpy(), expected * number) for number, t in enumerate(last[0], 1))

    return Way(call, lambda: wrong() if last[0] else case.count)


def _recorded(variables: Sequence[tf.Variable], scale: tf.Tensor) -> tuple[tf.GradientTape, tf.Tensor]:
    with tf.GradientTape() as tape:
        sums = [number * tf.reduce_sum(variable) for number, variable in enumerate(variables, 1)]
        loss = scale * tf.add_n(sums)
    return tape, loss


class Training:
    """Trains a model with one batch again and again, by SGD with momentum. No time goes into reading data.

    Args:
        case: The model, and the number of images.
        rank: The rank, which gives the images.
        finish: Computes the gradients.

    Attributes:
        model: The model, with the same initial weights on all ranks.
    """

    def __init__(self, case: Case, rank: int, finish: Finish):
        keras = _compat.keras()
        self.model = models.build(case.set)
        self._batch = tuple(map(tf.constant, models.batch(rank, case.batch)))
        self._finish = finish
        self._loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        self._optimizer = keras.optimizers.SGD(1e-3, momentum=0.9)
        self._optimizer.build(self.model.trainable_variables)

    def step(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Trains with a batch and returns the loss."""
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            # Some versions of Keras divide their mean by the number of replicas of a strategy.
            loss = tf.reduce_mean(self._loss(labels, self.model(images, training=True)))
        gradients = self._finish(tape, loss, variables)
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def way(self, run: Callable[..., Any] | None = None, *, equal: bool = True) -> Way:
        """One step in a tf.function.

        Args:
            run: Calls its first argument, `step`, with the batch. Defaults to a plain call.
            equal: Whether weights with different bits on the ranks are wrong.
        """
        function = tf.function(lambda *batch: run(self.step, batch) if run else self.step(*batch))
        return Way(
            lambda: function(*self._batch), lambda: models.different_weights(self.model) if equal else 0
        )
