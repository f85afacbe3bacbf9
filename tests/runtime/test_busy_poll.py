"""Threads that submit small requests poll for them: when they do, and that no result or error changes."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.harness.restart import restart
from tfddl.runtime import stats

LENGTH = 50


def chain(hvd, x: tf.Tensor, **options) -> np.ndarray:
    """Allreduces of which each needs the result of the one before."""

    @tf.function
    def run(x):
        for i in range(LENGTH):
            x = hvd.allreduce(x, op=hvd.Sum, name=f"chain.{i}", **options) + tf.cast(i, x.dtype)
        return x

    for _ in range(4):
        result = run(x)
    return result.numpy()


def expected(ranks: int, inputs: list[np.ndarray]) -> np.ndarray:
    x = inputs
    for i in range(LENGTH):
        x = [np.sum(x, axis=0) + i] * ranks
    return x[0]


@on_ranks(1, 2, 3)
def test_who_polls(hvd):
    # Sums of integers wrap, so that the chain may be long.
    inputs = [np.arange(5, dtype="int64") + rank for rank in range(hvd.size())]
    for wish in ("1", "0"):
        restart(hvd, TFDDL_BUSY_POLL=wish)
        result = chain(hvd, tf.constant(inputs[hvd.rank()]))
        np.testing.assert_array_equal(result, expected(hvd.size(), inputs))
        # With less than a core for each rank polls may be in vain, and are skipped: one rank may skip all.
        polled = sum(hvd.allgather_object(stats()["polled"]))
        assert polled == 0 if wish == "0" else polled > (10 if hvd.size() == 1 else 0)
    restart(hvd)


@on_ranks(3)
def test_sets_and_errors(hvd):
    restart(hvd, TFDDL_BUSY_POLL="1")
    two = hvd.add_process_set([0, 2])
    if two.included():
        x = tf.constant([hvd.rank() + 1], tf.int64)
        np.testing.assert_array_equal(
            chain(hvd, x, process_set=two), expected(2, [np.array([1]), np.array([3])])
        )
    for _ in range(3):
        with pytest.raises(
            tf.errors.FailedPreconditionError, match=r"rank 0: float32 \[1\]; rank 1: float32 \[2\]"
        ):
            hvd.allreduce(tf.ones([hvd.rank() + 1]), name="other shapes")
    assert hvd.allreduce(tf.constant(1.0), op=hvd.Sum) == 3
    hvd.remove_process_set(two)
    restart(hvd)


@on_ranks(1, 2)
def test_unknown_value(hvd):
    for variable in ("TFDDL_BUSY_POLL", "TFDDL_PIN_GPU"):  # of the engine, and of Python
        with pytest.raises(ValueError, match=rf"{variable} must be 0 or 1: set one of them. Received: 'yes'"):
            restart(hvd, **{variable: "yes"})
        assert not hvd.is_initialized()
    hvd.init()
