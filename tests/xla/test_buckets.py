"""The buckets of a gradient computation in compiled programs: all have started before the first wait."""

import os
import re
import threading
import time
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from mpi4py import MPI

from tests.harness import on_ranks, run_script
from tests.harness.flight import operations
from tests.xla.support import counts, jit, recorded
from tfddl.gradients import reduction
from tfddl.gradients.gradient_options import GradientOptions
from tfddl.ops import native

ONE_EACH = {"TFDDL_BUCKET_MB": "0.0001,0.0001"}
"""Buckets of one tensor."""

COUNT = 4
PATIENCE = 30.0
"""Seconds in which a rank must submit all buckets, on a busy machine."""

DTYPES = ("float32", "float16", "float64", "bfloat16")


def _tensors(x):
    return [tf.cast(x, dtype) * (i + 1) for i, dtype in enumerate(DTYPES)]


def _submitted():
    return sum("way#" in each.name for each in operations())


@on_ranks(2)
def test_all_are_under_way_before_the_program_waits(hvd):
    """Rank 1 submits no bucket before rank 0 has submitted all."""

    @jit
    def step(x):
        with mock.patch.dict(os.environ, ONE_EACH):
            return reduction.reduce_gradients(_tensors(tf.sin(x)), owner="way")

    x = tf.ones([50])
    step(x)  # compiles
    before = _submitted()
    seen = []

    def watch():
        end = time.monotonic() + PATIENCE
        while _submitted() < before + COUNT and time.monotonic() < end:
            time.sleep(0.02)
        seen.append(_submitted() - before)
        MPI.COMM_WORLD.send(None, dest=1)

    if hvd.rank() == 0:
        thread = threading.Thread(target=watch)
        thread.start()
        step(x)
        thread.join()
        assert seen == [COUNT]
    else:
        MPI.COMM_WORLD.recv(source=0)
        step(x)


@on_ranks(2, full=(1, 3))
def test_results(hvd):
    """Ranks agree also if one of them does not compile, and in the body of a loop."""

    def reduce(x):
        with mock.patch.dict(os.environ, ONE_EACH):
            options = GradientOptions(gradient_predivide_factor=2.0)
            return reduction.reduce_gradients(_tensors(x), owner="results", options=options)

    def loop(x):
        body = lambda i, x: (i + 1, tf.add_n([tf.cast(y, x.dtype) for y in reduce(x)]))  # noqa: E731
        return tf.while_loop(lambda i, _: i < 2, body, [0, x])[1]

    mean = (hvd.size() + 1) / 2
    for everybody in (True, False):
        compiled = everybody or hvd.rank() == 0
        x = tf.fill([3, 2], float(hvd.rank() + 1))
        results = tf.function(reduce, jit_compile=compiled)(x)
        assert [result.dtype.name for result in results] == list(DTYPES)
        for i, result in enumerate(results):
            np.testing.assert_allclose(
                tf.cast(result, tf.float32), np.full([3, 2], mean * (i + 1)), rtol=1e-6
            )
        with recorded() as names:
            y = tf.function(loop, jit_compile=compiled)(x)
        np.testing.assert_allclose(y, np.full([3, 2], 10.0 * 10.0 * mean), rtol=1e-6)
        assert sorted(counts(names).values()) == [2] * COUNT


def _finishes_before_starts(hlo):
    """How many finishes each start of a program has to wait for: its operands come from them, directly or not."""
    ends, waits = {}, []
    for name, text in re.findall(r"^ *(?:ROOT )?(%?[\w.-]+) = (.*)$", hlo, re.MULTILINE):
        ends[name] = set().union(*(ends.get(word, ()) for word in re.findall(r"%?[\w.-]+", text)))
        if '"tfddl_start"' in text:
            waits.append(len(ends[name]))
        if '"tfddl_finish"' in text:
            ends[name].add(name)
    return waits


@on_ranks(2, full=(1, 3))
def test_a_function_that_is_called_twice(hvd):
    """Its second call starts when the first has ended: the engine admits one call of a name at a time."""

    @tf.function
    def inner(x):
        with mock.patch.dict(os.environ, ONE_EACH):
            results = reduction.reduce_gradients(_tensors(x), owner="inner")
        return [tf.cast(result, tf.float32) for result in results]

    @jit
    def outer(x):
        return inner(x), inner(x + 10.0)

    x = tf.fill([50], float(hvd.rank()))
    # XLA may have an order of its own, so the results alone do not tell.
    hlo = outer.experimental_get_compiler_ir(x)(stage="hlo")
    assert _finishes_before_starts(hlo) == COUNT * [0] + COUNT * [COUNT]
    mean = (hvd.size() - 1) / 2
    for results, expected in zip(outer(x), (mean, mean + 10), strict=True):
        for i, result in enumerate(results):
            np.testing.assert_allclose(result, np.full([50], expected * (i + 1)), rtol=1e-2)


@on_ranks(2, full=(1, 3))
def test_gradients(hvd):
    """The gradient of each bucket is the gradient of an allreduce."""
    assert hvd.xla_built()  # loads the kernels, which the raw op below does not

    def run(x, compiled):
        with tf.GradientTape() as tape:
            tape.watch(x)
            buckets = [[x * 2, x[:1]], [tf.cast(x, tf.float64) ** 2]]
            if compiled:
                outputs = native.allreduce_buckets(buckets, hvd.Sum, "twice", context="plan")
            else:
                outputs = [native.allreduce(bucket, hvd.Sum, f"once.{i}") for i, bucket in enumerate(buckets)]
            parts = [tf.cast(y, tf.float32) * (hvd.rank() + 1.0) for bucket in outputs for y in bucket]
            loss = tf.add_n([tf.reduce_sum(part) for part in parts])
        return tape.gradient(loss, x)

    x = tf.constant([1.0, 2.0, 3.0]) + hvd.rank()
    np.testing.assert_allclose(jit(lambda x: run(x, True))(x), tf.function(lambda x: run(x, False))(x))


@on_ranks(2, full=(3,))
def test_an_error_and_the_next_run(hvd):
    """Ranks with different buckets get an error; other started calls end as well, and the job goes on."""

    @jit
    def step(x):
        with mock.patch.dict(os.environ, ONE_EACH):
            fine = reduction.reduce_gradients(_tensors(x[:1]), owner="fine")
            with tf.control_dependencies([fine[0]]):  # orders the starts only
                wrong = reduction.reduce_gradients([x, tf.cast(x, tf.float64)], owner="wrong")
        return tf.cast(fine[0][0], tf.float32) + wrong[0][0]

    for _ in range(2):
        with pytest.raises(tf.errors.OpError, match=r"'step/wrong' with different arguments: rank 0: "):
            step(tf.ones([2 + hvd.rank()]))
        assert float(step(tf.ones([2]))) == 2.0


LONELY = """
import os
os.environ["TFDDL_BUCKET_MB"] = "0.0001,0.0001"
import tensorflow as tf
from mpi4py import MPI

import tfddl as hvd
from tfddl.gradients import reduction

hvd.init()
run = tf.function(lambda x: reduction.reduce_gradients([x, x + 1], owner="lonely"), jit_compile=True)
run(tf.ones([60]))
hvd.shutdown()
os.environ.update(TFDDL_STALL_WARNING="0.5", TFDDL_STALL_LIMIT="2")  # not for the first call, which compiles
hvd.init()
if hvd.rank() == 0:
    try:
        run(tf.ones([60]))
    except tf.errors.OpError as error:
        print("raised:", error, flush=True)
MPI.COMM_WORLD.Barrier()
MPI.COMM_WORLD.Abort(3)
"""


def test_a_rank_that_does_not_come_is_named():
    result = run_script(2, LONELY)
    (raised,) = [line for line in result.output.splitlines() if "raised:" in line]
    assert "lonely" in raised and "rank 1" in raised
