"""Collectives in graphs and sessions of TF1."""

import functools
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.support import at_once

v1 = tf.compat.v1


def build(hvd):
    """A graph with one collective of each kind, and the gradient of one."""
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [None, 2])
        y = v1.placeholder(tf.int64, [])
        fetches = {
            "sum": hvd.allreduce(x, op=hvd.Sum),
            "max": hvd.allreduce(x, op=hvd.Max),
            "rows": hvd.allgather(x[: hvd.rank() + 1]),
            "root": hvd.broadcast(x, hvd.size() - 1),
            "scattered": hvd.reducescatter(x, op=hvd.Sum),
            "exchanged": hvd.alltoall(x, [1] * hvd.size())[0],
            "gathered": hvd.grouped_allgather([x, y[tf.newaxis]])[1],
            "group": hvd.grouped_allreduce([x, None, y], op=hvd.Sum),
            "slices": hvd.allreduce(tf.IndexedSlices(x, tf.zeros([3], tf.int32), tf.constant([1, 2]))).values,
        }
        fetches["group"] = [fetches["group"][0], fetches["group"][2]]
        (fetches["gradient"],) = v1.gradients(fetches["sum"] ** 2, x)
    return graph, (x, y), fetches


def inputs(rank, turn):
    return np.arange(6, dtype="float32").reshape(3, 2) * (rank + 1) + turn, 10 * rank + turn


def check(results, rank, size, turn):
    parts = np.stack([inputs(rank, turn)[0] for rank in range(size)])
    total = parts.sum(axis=0)
    np.testing.assert_array_equal(results["sum"], total)
    np.testing.assert_array_equal(results["max"], parts.max(axis=0))
    np.testing.assert_array_equal(results["rows"], np.concatenate([p[: r + 1] for r, p in enumerate(parts)]))
    np.testing.assert_array_equal(results["scattered"], np.array_split(total, size)[rank])
    np.testing.assert_array_equal(results["exchanged"], parts[:, rank])
    np.testing.assert_array_equal(results["gathered"], [inputs(other, turn)[1] for other in range(size)])
    np.testing.assert_array_equal(results["root"], parts[-1])
    np.testing.assert_array_equal(results["group"][0], total)
    assert results["group"][1] == sum(inputs(rank, turn)[1] for rank in range(size))
    np.testing.assert_allclose(results["slices"], [total.sum(axis=0) / size], rtol=1e-6)
    np.testing.assert_array_equal(results["gradient"], 2 * total * size)


def run(hvd, session, placeholders, fetches, turns):
    for turn in turns:
        feeds = dict(zip(placeholders, inputs(hvd.rank(), turn), strict=True))
        check(session.run(fetches, feeds), hvd.rank(), hvd.size(), turn)


@on_ranks(1, 2, 3)
def test_every_kind_with_new_values_each_time(hvd):
    graph, placeholders, fetches = build(hvd)
    names = [operation.name for operation in graph.get_operations()]
    with v1.Session(graph=graph) as session:
        run(hvd, session, placeholders, fetches, range(20))
    with v1.Session(graph=graph) as session:  # the same graph again
        run(hvd, session, placeholders, fetches, range(3))
    assert names == [operation.name for operation in graph.get_operations()]


@on_ranks(1, 2, 3)
def test_two_sessions_at_a_time(hvd):
    """Sessions of two graphs at a time; rank 1 starts the second session first."""
    built = [build(hvd) for _ in range(2)]

    def work(index):
        graph, placeholders, fetches = built[index]
        with v1.Session(graph=graph) as session:
            run(hvd, session, placeholders, fetches, range(index, 20 + index))

    at_once(*(functools.partial(work, index) for index in ((1, 0) if hvd.rank() == 1 else (0, 1))))


@on_ranks(2, 3)
def test_calls_that_do_not_fit_leave_the_session_usable(hvd):
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None])
        fetches = [hvd.allreduce(x, op=hvd.Sum), hvd.allreduce(tf.ones([2]), op=hvd.Sum)]
    with v1.Session(graph=graph) as session:
        for _ in range(2):
            # One collective of the step raises, which cancels the others; TensorFlow reports any of them.
            with pytest.raises((tf.errors.FailedPreconditionError, tf.errors.CancelledError)):
                session.run(fetches, {x: np.ones(2 if hvd.rank() == 0 else 3)})
            first, second = session.run(fetches, {x: np.ones(4)})
            np.testing.assert_array_equal(first, np.full(4, hvd.size()))
            np.testing.assert_array_equal(second, np.full(2, hvd.size()))


@pytest.mark.parametrize("control_flow", ["v1", "v2"])
@on_ranks(2)
def test_iterations_that_do_not_need_each_other(hvd, control_flow):
    """Rank 0 has the input of the first iteration last, rank 1 that of the second."""

    def late(index):
        time.sleep(0.2 * (index == hvd.rank()))
        return np.float32(index)

    def body(index):
        return hvd.allreduce(tf.numpy_function(late, [index], tf.float32, stateful=False))

    if control_flow == "v1":
        v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            results = tf.map_fn(body, tf.range(2), fn_output_signature=tf.float32)
    finally:
        v1.enable_control_flow_v2()
    with v1.Session(graph=graph) as session:
        np.testing.assert_array_equal(session.run(results), [0, 1])


@on_ranks(1, 2, 3)
def test_variables(hvd):
    with tf.Graph().as_default() as graph:
        variables = [
            v1.get_variable(f"v{i}", initializer=float(hvd.rank() + i), dtype=tf.float32) for i in (0, 1)
        ]
        variables.append(v1.get_variable("flag", initializer=hvd.rank() == 0, dtype=tf.bool))
        take = hvd.broadcast_variables(variables, root_rank=0)
        initialize = v1.global_variables_initializer()
    with v1.Session(graph=graph) as session:
        session.run(initialize)
        session.run(take)
        assert session.run(variables) == [0.0, 1.0, True]
