"""BroadcastGlobalVariablesHook and broadcast_global_variables in sessions of TF1."""

import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras import support

v1 = tf.compat.v1


def graph_of(hvd, factor):
    """A graph with one variable, whose start differs by rank and whose gradient is `factor`."""
    graph = tf.Graph()
    with graph.as_default():
        weights = v1.get_variable("w", initializer=np.full(3, 10.0 * (hvd.rank() + 1), "f"))
        step = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(1.0, 0.5))
        update = optimizer.minimize(tf.reduce_sum(weights) * factor, step)
    return graph, weights, step, update


@pytest.mark.parametrize("root", ["first", "last"])
@on_ranks(2, full=(1, 3))
def test_the_hook_gives_all_the_roots_values(hvd, root):
    root = 0 if root == "first" else hvd.size() - 1
    graph, weights, _, update = graph_of(hvd, hvd.rank() + 1.0)
    with (
        graph.as_default(),
        v1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(root)]) as session,
    ):
        start = 10.0 * (root + 1)
        np.testing.assert_array_equal(session.run(weights), [start] * 3)
        session.run(update)
        np.testing.assert_allclose(session.run(weights), [start - (hvd.size() + 1) / 2] * 3)


@pytest.mark.parametrize("monitored", [True, False])
@on_ranks(2, full=(1, 3))
def test_a_session_without_the_broadcast_is_told(hvd, monitored):
    """The warning comes once for each graph, after its first step."""
    for broadcast in (False, True):
        graph, _, _, update = graph_of(hvd, 1.0)
        with graph.as_default(), support.logged() as said:
            if monitored:
                hooks = [hvd.BroadcastGlobalVariablesHook(0)] if broadcast else []
                session = v1.train.MonitoredTrainingSession(hooks=hooks)
            else:
                send = hvd.broadcast_global_variables(0) if broadcast else None
                session = v1.Session()
                session.run(v1.global_variables_initializer())
                if broadcast:
                    session.run(send)
            with session:
                assert not said
                for _ in range(2):
                    session.run(update)
        assert len(said) == (hvd.size() > 1 and hvd.rank() == 0 and not broadcast)
        assert not said or "hooks=[hvd.BroadcastGlobalVariablesHook(0)]" in said[0]


@on_ranks(2, full=(1, 3))
def test_resumes_from_a_checkpoint_that_rank_0_alone_has(hvd):
    with tempfile.TemporaryDirectory() as directory:
        mine = os.path.join(directory, "model") if hvd.rank() == 0 else None
        hook = hvd.BroadcastGlobalVariablesHook(0)
        for session_number in range(3):
            graph, weights, step, update = graph_of(hvd, 1.0)
            with (
                graph.as_default(),
                v1.train.MonitoredTrainingSession(
                    checkpoint_dir=mine, save_checkpoint_steps=1, hooks=[hook], log_step_count_steps=None
                ) as session,
            ):
                assert session.run(step) == session_number
                session.run(update)
                values = session.run(weights)
            for other in hvd.allgather_object(values):
                np.testing.assert_array_equal(other, values)
        # 10 - 1 - 1.5 - 1.75: the momentum came through the checkpoint as well
        np.testing.assert_allclose(values, [5.75] * 3)


@on_ranks(2, full=(3,))
def test_the_function_in_a_plain_session(hvd):
    graph, weights, _, _ = graph_of(hvd, 1.0)
    with graph.as_default():
        take = hvd.broadcast_global_variables(1)
        start = v1.global_variables_initializer()
    with v1.Session(graph=graph) as session:
        session.run(start)
        session.run(take)
        np.testing.assert_array_equal(session.run(weights), [20.0] * 3)


@on_ranks(1)
def test_where_there_are_no_global_variables(hvd):
    with pytest.raises(RuntimeError, match=r"broadcast_variables\(model.weights"):
        hvd.broadcast_global_variables(0)
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        tf.function(lambda: hvd.broadcast_global_variables(0))()


@on_ranks(2)
def test_a_broadcast_before_the_variables_does_nothing(hvd):
    """As with Horovod. If the session trains later, the reminder comes as if there were no broadcast."""
    with tf.Graph().as_default(), v1.Session() as session, support.logged() as said:
        nothing = hvd.broadcast_global_variables(0)
        assert session.run(nothing) is None
        weights = v1.get_variable("w", initializer=[1.0, 2.0])
        update = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0)).minimize(
            tf.reduce_sum(weights)
        )
        session.run(v1.global_variables_initializer())
        session.run(nothing)
        session.run(update)
    assert ["its graph has no broadcast" in line for line in said] == ([True] if hvd.rank() == 0 else [])


@on_ranks(2, full=(3,))
def test_each_graph_has_names_of_its_own(hvd):
    """Two threads of a rank may run the broadcasts of their sessions in any order."""
    graphs = []
    for _ in range(2):
        graph, weights, _, _ = graph_of(hvd, 1.0)
        with graph.as_default():
            graphs.append((graph, weights, hvd.broadcast_global_variables(0)))
    names = [
        {op.get_attr("tensor_name") for op in graph.get_operations() if "tensor_name" in op.node_def.attr}
        for graph, _, _ in graphs
    ]
    assert names[0] and not names[0] & names[1]
    assert len({str([sorted(each) for each in mine]) for mine in hvd.allgather_object(names)}) == 1
