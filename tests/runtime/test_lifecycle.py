"""init, shutdown and calls between them; rank and size."""

import functools
import sys
import threading
import time
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, run_script
from tests.ops.support import at_once, check, in_threads


def sum_of_ones(hvd):
    check(hvd.allreduce(tf.ones([3]), op=hvd.Sum), np.full(3, hvd.size(), "float32"))


@on_ranks(1, 2, 3)
def test_ranks_on_one_machine(hvd):
    ranks = hvd.allgather(tf.constant([hvd.rank()])).numpy()
    assert ranks.tolist() == list(range(hvd.size()))
    assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), hvd.size())
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous() is True


@on_ranks(1, 2)
def test_before_init(hvd):
    hvd.shutdown()
    assert not hvd.is_initialized()
    for function in (
        hvd.rank,
        hvd.size,
        hvd.local_rank,
        hvd.local_size,
        hvd.cross_rank,
        hvd.cross_size,
        hvd.is_homogeneous,
    ):
        with pytest.raises(ValueError, match=r"not been initialized; use hvd\.init\(\)"):
            function()
    with (
        mock.patch.dict(sys.modules, ipykernel=None),
        pytest.raises(ValueError, match="in the function that tfddl"),
    ):
        hvd.rank()
    for name, arguments in (
        ("shard", ([1, 2],)),
        ("shard_arrays", ([1, 2],)),
        ("steps_per_epoch", (60, 2)),
    ):
        received = rf"right after the imports\. Received: a call of hvd\.data\.{name}\(\)"
        with pytest.raises(ValueError, match=received):
            getattr(hvd.data, name)(*arguments)
    not_ready = (ValueError, tf.errors.FailedPreconditionError)
    for call in (
        lambda: hvd.allreduce(tf.ones([3])),
        lambda: hvd.broadcast(tf.ones([3]), 0),
        lambda: hvd.allgather(tf.ones([3])),
        lambda: hvd.grouped_allreduce([tf.ones([3])]),
    ):
        with pytest.raises(not_ready, match="init"):
            call()


@on_ranks(1, 2, 3)
def test_again_after_shutdown(hvd):
    for _ in range(3):
        sum_of_ones(hvd)
        hvd.shutdown()
        hvd.shutdown()
        assert not hvd.is_initialized()
        hvd.init()
        hvd.init()
        assert hvd.is_initialized()
    sum_of_ones(hvd)


def test_functions_at_exit_run_before_the_job_ends():
    """Also those that were registered before a second init(), as after a recovery."""
    script = """
        import atexit
        import tfddl as hvd

        hvd.init()
        atexit.register(lambda: print(f"rank {hvd.rank()} ends"))
        hvd.shutdown()
        hvd.init()
    """
    result = run_script(2, script, limit=60)
    assert result.code == 0, result.output
    assert all(f"rank {rank} ends" in result.output for rank in (0, 1))


@on_ranks(1, 2)
def test_a_function_outlives_the_engine(hvd):
    @tf.function
    def reduce(x):
        return hvd.allreduce(x, op=hvd.Sum, name="outlives")

    check(reduce(tf.ones([3])), np.full(3, hvd.size(), "float32"))
    hvd.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match="init"):
        reduce(tf.ones([3]))
    hvd.init()
    check(reduce(tf.ones([3])), np.full(3, hvd.size(), "float32"))


@on_ranks(2)
def test_shutdown_ends_what_is_pending(hvd):
    """Rank 0 leaves; the request of rank 1, which can never run, raises."""
    if hvd.rank() == 1:
        with pytest.raises(tf.errors.OpError, match="rank 0"):
            hvd.allreduce(tf.ones([3]), name="never.submitted.by.0")
    else:
        time.sleep(0.3)
    hvd.shutdown()
    hvd.init()
    sum_of_ones(hvd)


@on_ranks(2, full=(1, 3))
def test_calls_while_the_engine_ends_and_starts(hvd):
    """Threads call collectives during 20 shutdowns: each call has a result or an error, and nothing crashes."""
    end = threading.Event()

    def work(name):
        while not end.is_set():
            try:
                result = hvd.allreduce(tf.ones([3]), op=hvd.Sum, name=name)
                assert result.numpy().tolist() == [hvd.size()] * 3
            except (ValueError, tf.errors.FailedPreconditionError, tf.errors.UnknownError):
                pass  # not initialised, or shut down here or on another rank

    with in_threads(*(functools.partial(work, f"storm.{i}") for i in range(3))):
        for _ in range(20):
            time.sleep(0.02)
            hvd.shutdown()
            hvd.init()
        end.set()
        hvd.shutdown()
    hvd.init()
    sum_of_ones(hvd)


@on_ranks(1, 2, 3)
def test_several_threads_init_and_shut_down(hvd):
    for _ in range(3):
        at_once(*[hvd.shutdown] * 8)
        assert not hvd.is_initialized()
        at_once(*[hvd.init] * 8)
        sum_of_ones(hvd)
