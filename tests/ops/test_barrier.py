"""barrier, broadcast_, and the ops for ranks and sizes."""

import time

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.support import DTYPES, MODES, array, check
from tests.ops.test_mismatch import mismatch

v1 = tf.compat.v1


def times(hvd, started, ended):
    """The times at which all ranks have called the barrier and left it; the ranks share a clock."""
    return hvd.allgather(np.array([[started, ended]], "float64")).numpy().T


@pytest.mark.parametrize("late", [0, 1])
@on_ranks(2, 3)
def test_nobody_goes_on_before_all_have_come(hvd, late):
    for _ in range(2):  # a new name, and a known one
        if hvd.rank() == late:
            time.sleep(0.1)
        started = time.monotonic()
        assert hvd.barrier() is None
        came, went = times(hvd, started, time.monotonic())
        assert went.min() >= came.max()


@on_ranks(1, 2, 3)
def test_in_a_function_it_stands_between_what_is_before_and_after(hvd):
    variable = tf.Variable(0.0)

    @tf.function
    def body():
        variable.assign_add(1.0)
        if hvd.rank() == 0:
            tf.py_function(lambda: time.sleep(0.1), [], [])
        before = tf.timestamp()
        hvd.barrier()
        after = tf.timestamp()
        hvd.barrier()
        return before, after, variable.read_value()

    for turn in range(3):
        before, after, value = body()
        assert value == turn + 1
        came, went = times(hvd, float(before), float(after))
        assert went.min() >= came.max()


@on_ranks(1, 2, 3)
def test_in_a_session(hvd):
    with tf.Graph().as_default() as graph:
        barrier = hvd.barrier()
        with tf.control_dependencies([barrier]):
            after = tf.timestamp()
        topology = [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()]
        variable = v1.get_variable("v", initializer=float(hvd.rank()), dtype=tf.float32)
        (taken,) = hvd.broadcast_([variable], hvd.size() - 1)
        initialize = v1.global_variables_initializer()
    with v1.Session(graph=graph) as session:
        session.run(initialize)
        if hvd.rank() == 0:
            time.sleep(0.1)
        started = time.time()
        ended = session.run(after)
        numbers, value, held = session.run(topology), session.run(taken), session.run(variable)
    came, went = times(hvd, started, ended)
    assert went.min() >= came.max()
    assert numbers == [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]
    assert value == held == hvd.size() - 1


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3)
def test_ranks_and_sizes(hvd, mode):
    def body():
        return hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(name="n")

    results = (tf.function(body) if mode == "graph" else body)()
    expected = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]
    for result, number in zip(results, expected, strict=True):
        check(result, np.array(number, "int32"))


@on_ranks(1, 2, 3)
def test_ranks_and_sizes_are_those_of_the_time_of_the_run(hvd):
    function = tf.function(lambda: tf.stack([hvd.rank_op(), hvd.size_op()]))
    check(function(), np.array([hvd.rank(), hvd.size()], "int32"))
    hvd.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match="not been initialized"):
        function()
    hvd.init()
    check(function(), np.array([hvd.rank(), hvd.size()], "int32"))


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3)
def test_broadcast_in_place(hvd, mode):
    for root in range(hvd.size()):
        variables = [
            tf.Variable(array(hvd.rank(), dtype, (3, 2))) for dtype in (*DTYPES, "bool", "complex64")
        ]

        def body(root=root, variables=variables):
            return hvd.broadcast_(variables, root)

        values = (tf.function(body) if mode == "graph" else body)()
        for value, variable in zip(values, variables, strict=True):
            expected = array(root, variable.dtype.name, (3, 2))
            np.testing.assert_array_equal(value.numpy(), expected)
            np.testing.assert_array_equal(variable.numpy(), expected)


@on_ranks(2)
def test_broadcast_in_place_takes_variables_that_fit(hvd):
    with pytest.raises(TypeError, match=r"takes variables: .* Received: .*EagerTensor"):
        hvd.broadcast_([tf.ones([2])], 0)
    variable = tf.Variable(tf.fill([2 + hvd.rank()], float(hvd.rank())))
    mismatch(
        hvd,
        [lambda: hvd.broadcast_([variable], 0, name="fits")],
        "rank 0: float32 [2]",
        "rank 1: float32 [3]",
    )
    check(variable.read_value(), np.full(2 + hvd.rank(), hvd.rank(), "float32"))
