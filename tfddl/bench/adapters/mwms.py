"""TensorFlow's own `tf.distribute.MultiWorkerMirroredStrategy`, one process a worker."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfddl.bench.adapters import Process, Way, Ways, in_graph
from tfddl.bench.case import Case, count_wrong


def ways(process: Process) -> Ways:
    """Joins a cluster of workers."""
    task = {"type": "worker", "index": process.rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": process.addresses}, "task": task})
    in_graph.one_thread()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def way(case: Case) -> Way:
        if case.operation == "gradients":
            return _gradients(strategy, case, process.rank)
        if case.operation == "training":
            return _training(strategy, case, process.rank)
        if case.operation == "chain":
            return in_graph.chain(lambda t, link: _sum(t), case, process.rank, run=strategy.run)
        run: Callable[[Any], Any] = _sum if case.operation == "allreduce" else _gather
        values, expected = case.values(process.rank), case.expected(process.rank)
        return in_graph.around(lambda t: strategy.run(run, (t,)), values, expected)

    return way


# The strategy needs a tensor with a device. The argument of a function has none, and tf.identity gives it one.
def _sum(t: tf.Tensor) -> tf.Tensor:
    return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(t))


def _gather(t: tf.Tensor) -> tf.Tensor:
    return tf.distribute.get_replica_context().all_gather(tf.identity(t), axis=0)


def _gradients(strategy: Any, case: Case, rank: int) -> Way:
    with strategy.scope():
        variables = [tf.Variable(tf.zeros(shape)) for shape in case.shapes]

    def replica(scale: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = scale * tf.add_n([tf.reduce_sum(variable) for variable in variables])
        gradients = tape.gradient(loss, variables)
        return tf.distribute.get_replica_context().all_reduce("MEAN", gradients)

    function = tf.function(lambda scale: strategy.run(replica, (scale,)))
    scale = tf.constant(case.scale(rank))
    last: list[list[tf.Tensor]] = [[]]

    def call() -> None:
        last[0] = function(scale)

    return Way(
        call, lambda: sum(count_wrong(t.numpy(), case.mean) for t in last[0]) if last[0] else case.count
    )


def _training(strategy: Any, case: Case, rank: int) -> Way:
    """Trains by Keras' optimizer, which adds up the gradients of the replicas of a strategy."""
    share = tf.constant(1 / case.ranks)
    with strategy.scope():
        trained = in_graph.Training(
            case, rank, lambda tape, loss, variables: tape.gradient(loss, variables, share)
        )
    return trained.way(lambda step, batch: strategy.run(step, batch))
