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


@on_ranks(2)
def test_scale_in_the_last_digit(hvd):
    factor = 1234567.0 + hvd.rank()
    mismatch(
        hvd, [reduce(hvd, [3], postscale_factor=factor, name="mismatch.digit")], "1234567.0", "1234568.0"
    )


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
            time.sleep(0.2)
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
