"""TensorFlow's kernels for GPUs, through the engine, to the doubles of CUDA and NCCL."""

import re
from pathlib import Path

import pytest

from tests.harness import long

COLLECTIVES = Path(__file__).with_name("collectives.py")


def check(result, ranks):
    assert result.code == 0, result.output
    for rank in range(ranks):
        assert f"rank {rank} checked all" in result.output


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_collectives(run_on_gpus, ranks):
    check(run_on_gpus(ranks, COLLECTIVES), ranks)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, long(1), long(3)])
def test_training(run_on_gpus, ranks):
    check(run_on_gpus(ranks, Path(__file__).with_name("training.py")), ranks)


@pytest.mark.slow
def test_late_streams(run_on_gpus):
    """Work that starts late, and is put on the stream late, shows what does not wait for it."""
    check(run_on_gpus(2, COLLECTIVES, stream_delay_us=300, enqueue_delay_us=300), 2)


def test_one_rank_on_the_cpu(run_on_gpus):
    """An error on all ranks, after which the job goes on."""
    script = """
from tests.gpu.rank import *
with tf.device(CPU if rank == 0 else GPU):
    try:
        hvd.allreduce(tf.identity(tf.ones([3])), name="mixed")
    except tf.errors.FailedPreconditionError as error:
        assert "'mixed' with different arguments: rank 0: on the CPU; rank 1: on a GPU" in str(error), error
    else:
        raise AssertionError("no error")
with tf.device(GPU):
    assert hvd.allreduce(tf.identity(tf.ones([3])), op=hvd.Sum)[0] == size
print("rank", rank, "checked all")
"""
    check(run_on_gpus(2, script), 2)


def test_a_cancelled_step(run_on_gpus):
    """Its requests have keys of their own: the first bucket of a sequence, which is none on a GPU, and the others."""
    script = """
import time
from tests.gpu.rank import *
from tfddl.ops import native
from tfddl.runtime import library

def fail_in_flight():
    while library.native().tfddl_set_in_flight(0).count(b"'steps") < 2:
        time.sleep(0.01)
    raise ValueError("planted")

@tf.function
def step(x):
    with tf.device(GPU):
        buckets = [native.allreduce([x], hvd.Sum, "steps", bucket=i, buckets=3, context="c") for i in range(2)]
    with tf.device(CPU):
        wrong = tf.py_function(fail_in_flight, [], tf.int32)
    return buckets, wrong

hvd.barrier()
if rank == 1:
    try:
        step(tf.ones([3]))
    except tf.errors.OpError as error:
        print("rank 1 raised:", type(error).__name__, flush=True)
    wait_until_said("rank 0 raised")
else:
    wait_until_said("rank 1 raised")
    try:
        hvd.allreduce(tf.ones([3]))
    except tf.errors.UnknownError as error:
        print("rank 0 raised:", error, flush=True)
"""
    result = run_on_gpus(2, script)
    text = r"rank 1: the step that 'steps(#1)?' belongs to failed or was cancelled"
    assert re.search(text, result.output), result.output
    assert "rank 1 raised" in result.output and "rank 0 raised" in result.output


def test_an_error_of_nccl(run_on_gpus):
    """It ends the job on all ranks, each of which raises."""
    script = """
from tests.gpu.rank import *
try:
    with tf.device(GPU):
        x = tf.identity(tf.ones([1000]))
        for _ in range(9):
            hvd.allreduce(x, op=hvd.Sum)
except tf.errors.UnknownError as error:
    print("rank", rank, "raised", "asynchronous work" in str(error), flush=True)
for other in range(size):
    wait_until_said(f"rank {other} raised")
"""
    result = run_on_gpus(3, script, fail_rank=1, fail_at=3)
    for rank in range(3):
        assert f"rank {rank} raised True" in result.output, result.output


@pytest.mark.slow
def test_nothing_is_opened_without_a_gpu(run_on_gpus):
    script = """
import tensorflow as tf
import tfddl as hvd
hvd.init()
assert not hvd.gpu_available()
assert hvd.allreduce(tf.ones([3]), op=hvd.Sum)[0] == hvd.size()
assert "tfddl_fake" not in open("/proc/self/maps").read()
print("rank", hvd.rank(), "checked all")
"""
    check(run_on_gpus(2, script), 2)
