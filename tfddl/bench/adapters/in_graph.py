"""TensorFlow's part of the adapters: a function around one collective, a step that has gradients only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfddl.bench.adapters import Place, Way, Ways
from tfddl.bench.case import Case, count_wrong


def one_thread() -> None:
    """One thread within ops and one between them; before anything else of TensorFlow."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def of_library(hvd: Any, place: Place, operations: Mapping[str, Callable[..., Any]]) -> Ways:
    """The ways of a library that has Horovod's interface: it joins its job here.

    Args:
        hvd: Its module.
        place: This process.
        operations: Functions of a tensor and a name, by the names of cases.
    """
    one_thread()
    hvd.init()

    def averaged(tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[tf.Variable]) -> Any:
        return hvd.DistributedGradientTape(tape).gradient(loss, variables)

    def way(case: Case) -> Way:
        if case.operation == "gradients":
            return step(case, place.rank, averaged, case.mean)
        run, name = operations[case.operation], f"bench.{case.operation}.{case.bytes}"
        return around(lambda t: run(t, name), case.values(place.rank), case.expected(place.rank))

    return way


def around(op: Callable[[tf.Tensor], tf.Tensor], x: Any, expected: Any) -> Way:
    """A tf.function around one op. On the CPU its call returns when the result is there."""
    function = tf.function(op)
    tensor = tf.constant(x)
    last: list[tf.Tensor] = [tensor]

    def call() -> None:
        last[0] = function(tensor)

    return Way(call, lambda: count_wrong(last[0].numpy(), expected))


def step(case: Case, rank: int, finish: Callable[..., Any], expected: float) -> Way:
    """A step that has gradients only; `finish(tape, loss, variables)` takes them.

    The loss is `scale * sum of all variables`: every gradient is `scale` everywhere, and costs next to nothing.
    """
    variables = [tf.Variable(tf.zeros(shape)) for shape in case.shapes]
    run = tf.function(lambda scale: finish(*_recorded(variables, scale), variables))
    scale = tf.constant(case.scale(rank))
    last: list[Sequence[tf.Tensor]] = [[]]

    def call() -> None:
        last[0] = run(scale)

    return Way(
        call, lambda: sum(count_wrong(t.numpy(), expected) for t in last[0]) if last[0] else case.count
    )


def _recorded(variables: Sequence[tf.Variable], scale: tf.Tensor) -> tuple[tf.GradientTape, tf.Tensor]:
    with tf.GradientTape() as tape:
        loss = scale * tf.add_n([tf.reduce_sum(variable) for variable in variables])
    return tape, loss
