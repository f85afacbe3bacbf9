"""Calls that differ by rank: the same clear error on every rank, and the job goes on."""

import functools
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.support import arguments_by_rank, check, in_threads

FailedPrecondition = tf.errors.FailedPreconditionError


def works(hvd):
    """Checks that the next collectives work, with new and known names."""
    for _ in range(2):
        result = hvd.allreduce(tf.ones([3]), op=hvd.Sum, name="after.mismatch")
        check(result, np.full(3, hvd.size(), "float32"))


def mismatch(hvd, calls, *quoted):
    """Rank r makes calls[min(r, last)]; all get an error that quotes all of `quoted`, in the same words."""
    with pytest.raises(FailedPrecondition) as caught:
        calls[min(hvd.rank(), len(calls) - 1)]()
    message = caught.value.message
    message = message[
        message.index("tfddl '") : message.rindex("names.")
    ]  # around it TensorFlow says the kind of op
    by_rank = "; ".join(f"rank {rank}: {text}" for rank, text in arguments_by_rank(message).items())
    for text in quoted:
        assert text in message or text in by_rank, message
    words = tf.constant(np.frombuffer(message.encode().ljust(4096), "int64"))
    for other in np.split(hvd.allgather(words).numpy(), hvd.size()):
        np.testing.assert_array_equal(other, words)
    works(hvd)


def reduce(hvd, shape, dtype=tf.float32, **options):
    return lambda: hvd.allreduce(tf.ones(shape, dtype), **{"op": hvd.Sum, **options})


@on_ranks(2, 3)
def test_shape(hvd):
    calls = [reduce(hvd, [3, 4], name="mismatch.shape"), reduce(hvd, [4, 4], name="mismatch.shape")]
    mismatch(
        hvd, calls, "mismatch.shape", "rank 0: float32 [3, 4]", "rank 1: float32 [4, 4]", "the same shape on"
    )


@on_ranks(2, 3)
def test_dtype(hvd):
    calls = [reduce(hvd, [3], name="mismatch.dtype"), reduce(hvd, [3], tf.int64, name="mismatch.dtype")]
    mismatch(hvd, calls, "mismatch.dtype", "rank 0: float32 [3]", "rank 1: int64 [3]")


@on_ranks(2, 3)
def test_operation(hvd):
    calls = [reduce(hvd, [3], name="mismatch.op"), reduce(hvd, [3], op=hvd.Average, name="mismatch.op")]
    mismatch(hvd, calls, "mismatch.op", "rank 0: op=Sum", "rank 1: op=Average", "the same op on")


@on_ranks(2, 3)
def test_scale(hvd):
    calls = [
        reduce(hvd, [3], name="mismatch.scale"),
        reduce(hvd, [3], prescale_factor=0.5, name="mismatch.scale"),
    ]
    mismatch(hvd, calls, "mismatch.scale", "0.5")


@on_ranks(2)
def test_scale_in_the_last_digit(hvd):
    factor = 1234567.0 + hvd.rank()
    mismatch(
        hvd, [reduce(hvd, [3], postscale_factor=factor, name="mismatch.digit")], "1234567.0", "1234568.0"
    )


@on_ranks(2, 3)
def test_root(hvd):
    mismatch(
        hvd,
        [lambda: hvd.broadcast(tf.ones([3]), min(hvd.rank(), 1), name="mismatch.root")],
        "the same root_rank on",
    )


@on_ranks(2, 3)
def test_rows_beyond_the_first_dimension(hvd):
    calls = [
        lambda: hvd.allgather(tf.ones([1, 2]), name="mismatch.rows"),
        lambda: hvd.allgather(tf.ones([5, 3]), name="mismatch.rows"),
    ]
    mismatch(hvd, calls, "mismatch.rows", "2]", "3]")


@on_ranks(2, 3)
def test_kind(hvd):
    calls = [
        reduce(hvd, [3], name="mismatch.kind"),
        lambda: hvd.broadcast(tf.ones([3]), 0, name="mismatch.kind"),
    ]
    mismatch(hvd, calls, "allreduce", "broadcast")


@on_ranks(2, 3)
def test_members_of_a_group(hvd):
    def group(*shapes):
        return lambda: hvd.grouped_allreduce([tf.ones(shape) for shape in shapes], name="mismatch.group")

    mismatch(hvd, [group([2], [3]), group([2], [4])], "float32 [3]", "float32 [4]")


@on_ranks(2, 3)
def test_between_signatures_that_are_both_known(hvd):
    known = [reduce(hvd, [3, 4], name="mismatch.known"), reduce(hvd, [4, 4], name="mismatch.known")]
    for call in known * 2:
        call()
    for _ in range(3):
        mismatch(hvd, known, "rank 0: float32 [3, 4]", "rank 1: float32 [4, 4]")
    for call in known * 2:
        call()


@on_ranks(2, 3)
def test_shapes_that_change_from_call_to_call_of_one_op(hvd):
    """The op keeps its last description, which must change with the shape of a member."""

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)] * 2)
    def group(*tensors):
        return hvd.grouped_allreduce(tensors, op=hvd.Sum, name="mismatch.changing")

    def run(last):
        return lambda: group(tf.ones([2]), tf.ones(last))

    for last in ([3], [4], [2, 2], [3]):
        check(run(last)()[1], np.full(last, hvd.size(), "float32"))
    mismatch(hvd, [run([3]), run([4])], "rank 0: float32 [3]", "rank 1: float32 [4]")
    mismatch(hvd, [run([2, 2]), run([3])], "rank 0: float32 [2, 2]", "rank 1: float32 [3]")


@on_ranks(3)
def test_the_third_rank_comes_late(hvd):
    for _ in range(2):  # First with a new name, then with a known one.
        if hvd.rank() == 2:
            time.sleep(0.7)
        calls = [reduce(hvd, [3, 4], name="mismatch.late"), reduce(hvd, [4, 4], name="mismatch.late")]
        mismatch(hvd, calls, "rank 0: float32 [3, 4]", "rank 1: float32 [4, 4]", "rank 2: float32 [4, 4]")


@on_ranks(2, 3)
def test_inside_a_function_with_others_in_flight(hvd):
    """TensorFlow waits for every op that has started, so the engine must end all of them."""

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def step(bad):
        good = [hvd.allreduce(tf.fill([1000], float(i)), op=hvd.Sum, name=f"flight.{i}") for i in range(8)]
        return hvd.allreduce(bad, op=hvd.Sum, name="flight.bad"), good

    def run(shape):
        return lambda: step(tf.ones(shape))

    run([3])()
    for _ in range(3):
        mismatch(hvd, [run([3]), run([4])], "rank 0: float32 [3]", "rank 1: float32 [4]")
    bad, good = run([4])()
    check(bad, np.full(4, hvd.size(), "float32"))
    check(good[3], np.full(1000, 3.0 * hvd.size(), "float32"))


@on_ranks(2, 3)
def test_in_one_thread_leaves_the_others_alone(hvd):
    results = {}

    def work(index):
        results[index] = hvd.allreduce(tf.fill([3], float(index)), op=hvd.Sum, name=f"beside.{index}")

    calls = [reduce(hvd, [3], name="beside.bad"), reduce(hvd, [4], name="beside.bad")]
    with in_threads(*(functools.partial(work, index) for index in range(4))):
        mismatch(hvd, calls, "rank 0: float32 [3]")
    for index in range(4):
        check(results[index], np.full(3, index * hvd.size(), "float32"))


@on_ranks(2)
def test_a_name_in_flight_cannot_be_used_again(hvd):
    from mpi4py import MPI

    from tfddl.runtime import flight_log

    if hvd.rank() == 0:
        first = []
        with in_threads(lambda: first.append(reduce(hvd, [3], name="in.flight")())):
            while not any(entry["name"] == "in.flight" for entry in flight_log()):
                time.sleep(0.01)
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"in\.flight"):
                reduce(hvd, [3], name="in.flight")()
            MPI.COMM_WORLD.Barrier()
        check(first[0], np.full(3, 2, "float32"))
    else:
        MPI.COMM_WORLD.Barrier()
        check(reduce(hvd, [3], name="in.flight")(), np.full(3, 2, "float32"))
    works(hvd)
