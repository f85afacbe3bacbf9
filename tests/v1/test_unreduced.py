"""BroadcastGlobalVariablesHook warns of a session that trains and combines no gradient, and of no other session."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras import support
from tfddl import runtime

v1 = tf.compat.v1
LOCAL = [v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.TRAINABLE_VARIABLES]


def sgd():
    return v1.train.GradientDescentOptimizer(0.25)


def loss_scaled():
    return v1.mixed_precision.MixedPrecisionLossScaleOptimizer(
        sgd(), v1.mixed_precision.DynamicLossScale(8.0)
    )


def network(hvd, name="net", resource=True, **more):
    """Two variables and a loss, whose gradients differ by rank."""
    with v1.variable_scope(name, use_resource=resource):
        weights = v1.get_variable("w", [3], initializer=v1.ones_initializer(), **more)
        bias = v1.get_variable("b", [], initializer=v1.zeros_initializer(), **more)
    return [weights, bias], (tf.reduce_sum(weights**2) + bias) * (hvd.rank() + 1.0)


def said_of(hvd, graph, steps):
    """The warnings of a session that runs each of the fetches, and how many collectives it has asked for."""
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    with (
        graph.as_default(),
        support.logged() as said,
        v1.train.MonitoredTrainingSession(hooks=hooks) as session,
    ):
        before = runtime.stats()["requests"]
        for fetches in steps:
            session.run(fetches)
        return said, runtime.stats()["requests"] - before


def warns(said, hvd, names):
    """Whether the only warning is rank 0's, with these names."""
    assert len(said) == (hvd.size() > 1 and hvd.rank() == 0)
    assert all(text.endswith(f"a graph without reductions that changes {names}") for text in said)
    return True


# TensorFlow's loss scaling takes resource variables only.
@pytest.mark.parametrize(
    "optimizer, resource", [(sgd, True), (v1.train.AdamOptimizer, False), (loss_scaled, True)]
)
@on_ranks(2, full=(1, 3))
def test_a_plain_optimizer(hvd, optimizer, resource):
    """Ranks may run different numbers of steps, because the check waits for no rank."""
    with tf.Graph().as_default() as graph:
        _, loss = network(hvd, resource=resource)
        update = optimizer().minimize(loss)
    said, requests = said_of(hvd, graph, [loss] * 3 + [update] * (1 + 3 * hvd.rank()))
    assert warns(said, hvd, "net/w:0, net/b:0") and requests == 0


@on_ranks(2, full=(1,))
def test_a_plain_optimizer_of_an_embedding(hvd):
    with tf.Graph().as_default() as graph:
        table = v1.get_variable("table", [5, 2])
        update = sgd().minimize(tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 2])))
    assert warns(said_of(hvd, graph, [update])[0], hvd, "table:0")


@pytest.mark.parametrize("optimizer", [sgd, v1.train.AdamOptimizer, loss_scaled])
@on_ranks(2, full=(1, 3))
def test_a_distributed_optimizer(hvd, optimizer):
    """The check costs no collective."""
    with tf.Graph().as_default() as graph:
        _, loss = network(hvd)
        update = hvd.DistributedOptimizer(optimizer()).minimize(loss)
    said, requests = said_of(hvd, graph, [loss, update, loss, update])
    assert not said and requests == 2


@on_ranks(2)
def test_a_reduction_in_a_function(hvd):
    with tf.Graph().as_default() as graph:
        variables, loss = network(hvd)
        mean = tf.function(lambda x: tf.cond(x[0] > -1e9, lambda: hvd.allreduce(x), lambda: x))
        gradient = mean(v1.gradients(loss, variables)[0])
        update = sgd().apply_gradients([(gradient, variables[0])])
    assert not said_of(hvd, graph, [loss, update, update])[0]


@on_ranks(2)
def test_gradients_that_are_reduced_outside_of_the_graph(hvd):
    with tf.Graph().as_default():
        variables, loss = network(hvd)
        gradients = v1.gradients(loss, variables)
        means = [v1.placeholder(each.dtype, each.shape) for each in gradients]
        update = sgd().apply_gradients(list(zip(means, variables, strict=True)))
        session = v1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)])
    with support.logged() as said, session:  # outside of the graph: eager
        for _ in range(3):
            parts = session.run(gradients)
            reduced = [hvd.allreduce(part, name="mean").numpy() for part in parts]
            session.run(update, dict(zip(means, reduced, strict=True)))
    assert not said


@on_ranks(2, full=(1,))
def test_variables_that_may_differ(hvd):
    """Local variables, and copies in a graph without an optimizer."""
    with tf.Graph().as_default() as graph:
        _, loss = network(hvd, collections=LOCAL)
        (target, _), _ = network(hvd, "target")
        local = sgd().minimize(loss)
    assert not said_of(hvd, graph, [local, local])[0]
    with tf.Graph().as_default() as graph:
        (target, _), loss = network(hvd, "target")
        copy = target.assign(tf.ones([3]) * (hvd.rank() + 2.0))
    assert not said_of(hvd, graph, [loss, copy, copy])[0]


@on_ranks(3)
def test_a_rank_outside_of_the_set(hvd):
    """The user lets this rank train alone, so there is no warning."""
    pair = hvd.add_process_set([1, 2])
    with tf.Graph().as_default() as graph:
        _, loss = network(hvd)
        update = hvd.DistributedOptimizer(sgd(), process_set=pair).minimize(loss)
    assert not said_of(hvd, graph, [update] * 3)[0]
    hvd.remove_process_set(pair)


@on_ranks(2, full=(1,))
def test_fetches_of_any_structure(hvd):
    with tf.Graph().as_default():
        (weights, _), loss = network(hvd)
        update = hvd.DistributedOptimizer(sgd()).minimize(loss)
        hooks = [hvd.BroadcastGlobalVariablesHook(0)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            result = session.run({1: [weights], "update": update, None: "net/w:0"})
    assert list(result) == [1, "update", None]


@on_ranks(2)
def test_the_comparison_of_the_documentation(hvd):
    with tf.Graph().as_default():
        v1.get_variable("w", initializer=np.arange(3.0) + hvd.rank())
        update = hvd.DistributedOptimizer(sgd()).minimize(tf.reduce_sum(v1.trainable_variables()[0] ** 2))
        hooks = [hvd.BroadcastGlobalVariablesHook(0)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            session.run(update)
            weights = [str(value.tolist()) for value in session.run(v1.trainable_variables())]
            other_session = v1.Session(graph=tf.Graph())
            assert all(each == weights for each in hvd.allgather_object(weights, session=other_session))
