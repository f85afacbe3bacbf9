"""The moment of a join: calls of other threads, ops before and after it in a graph, several process sets."""

import threading
import time
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from mpi4py import MPI

from tests.harness import on_ranks
from tests.join.uneven import STEPS, active
from tests.ops.support import check, in_threads
from tests.ops.test_mismatch import works
from tests.sets.support import added, sum_of_ones
from tfddl.runtime import stats

v1 = tf.compat.v1


@on_ranks(2, 3)
def test_other_threads(hvd):
    """Earlier calls of another thread run first; its later calls are refused."""
    results = {}

    def call(name, function):
        try:
            results[name] = function()
        except tf.errors.InvalidArgumentError as error:
            results[name] = error.message

    def start(name, function):
        thread = threading.Thread(target=call, args=(name, function))
        thread.start()
        return thread

    def reduced(name):
        return hvd.allreduce(tf.ones([2]), op=hvd.Sum, name=f"threads.{name}")

    if hvd.rank() > 0:
        mine = start("mine", lambda: reduced("mine"))
        MPI.COMM_WORLD.Barrier()
        check(reduced("before"), np.full(2, hvd.size(), "float32"))
        mine.join()
        check(results["mine"], np.full(2, hvd.size() - 1, "float32"))
        hvd.join()
    else:
        votes = stats()["votes"]
        before = start("before", lambda: reduced("before"))
        while stats()["votes"] == votes:  # until the first vote
            time.sleep(0.01)
        joins = [start(name, hvd.join) for name in ("one", "other")]
        while not results:  # until the second vote
            time.sleep(0.01)
        call("after", lambda: reduced("after"))
        MPI.COMM_WORLD.Barrier()
        for thread in (before, *joins):
            thread.join()
        assert "'threads.after' was called on rank 0 after hvd.join()" in results["after"]
        check(results["before"], np.full(2, hvd.size(), "float32"))
        ends = sorted((results["one"], results["other"]), key=str)
        assert ends[0] > 0 and "while an earlier call still waits" in ends[1]
    works(hvd)


@on_ranks(1, 2, 3)
def test_in_a_function(hvd):
    """A join runs after the collectives before it; later collectives wait for it."""

    counts = (4, 1, 3)[: hvd.size()]  # rank 0 is the last

    @tf.function
    def body(steps):
        total = tf.zeros([2])
        for _ in tf.range(steps):
            total += hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="loop")
        alone = hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="alone") if hvd.rank() == 0 else tf.ones([2])
        last = hvd.join()
        return total, alone, last, hvd.allreduce(tf.ones([3]), op=hvd.Sum, name="after")

    for _ in range(3):
        total, alone, last, after = body(tf.constant(counts[hvd.rank()]))
        expected = sum(sum(step < count for count in counts) for step in range(counts[hvd.rank()]))
        check(total, np.full(2, expected, "float32"))
        check(alone, np.ones(2, "float32"))
        check(after, np.full(3, hvd.size(), "float32"))
        check(last, np.array(0, "int32"))


@on_ranks(2, full=(1, 3))
def test_in_a_branch(hvd):
    """A join in a branch or in a function in it runs after the collectives before the branch, and before those after it."""

    @tf.function
    def nested():
        return hvd.join()

    def body(last, join):
        y = hvd.allreduce(tf.ones([1000]), op=hvd.Sum, name="before")
        rank = tf.constant(-1)
        if last:
            rank = join()
        return y, rank, hvd.allreduce(tf.ones([3]), op=hvd.Sum, name="after")

    for join in (hvd.join, nested):
        step = tf.function(partial(body, join=join))
        for _ in range(3):
            y, rank, after = step(tf.constant(True))
            check(y, np.full(1000, hvd.size(), "float32"))
            check(after, np.full(3, hvd.size(), "float32"))
            assert 0 <= int(rank) < hvd.size()
        assert int(step(tf.constant(False))[1]) == -1
        graph = step.get_concrete_function(tf.constant(True)).graph
        *_, behind = (op for op in graph.get_operations() if op.type == "TfddlAllreduce")
        assert [op.type for op in behind.control_inputs] == ["If"]


@on_ranks(1, 2, 3)
def test_in_a_session(hvd):
    """The join does not run the collectives of the graph, whose data has ended."""
    with tf.Graph().as_default() as graph:
        iterator = v1.data.make_initializable_iterator(tf.data.Dataset.range(STEPS[hvd.rank()]))
        y = hvd.allreduce(tf.fill([2], 0 * iterator.get_next() + 1), op=hvd.Sum)
        last = hvd.join(average_over="active")
    with v1.Session(graph=graph) as session:
        for _ in range(2):
            session.run(iterator.initializer)
            for step in range(STEPS[hvd.rank()]):
                np.testing.assert_array_equal(session.run(y), [len(active(step, hvd.size()))] * 2)
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(y)
            assert session.run(last) in range(hvd.size())


@on_ranks(3, full=(4,))
def test_one_of_two_sets(hvd):
    """Rank 1 joins in one set and goes on in the other and with all ranks; each set has a last rank of its own."""
    with added(hvd, [0, 1], [1, 2]) as (first, second):
        lasts = {}

        def join(one):
            lasts[one] = hvd.join(process_set=one)

        def alone(one):
            check(hvd.allreduce(tf.ones([2]), op=hvd.Sum, process_set=one), np.ones(2, "float32"))

        if hvd.rank() == 0:
            alone(first)
        with in_threads(*([partial(join, first)] if first.included() else [])):
            for one in (second, hvd.global_process_set):
                if one.included():
                    sum_of_ones(hvd, one)
            if hvd.rank() == 2:
                alone(second)
            if second.included():
                join(second)
        assert lasts == {one: last for one, last in ((first, 0), (second, 2)) if one.included()}
        for one in (first, second):
            if one.included():
                sum_of_ones(hvd, one)
