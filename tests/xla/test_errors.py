"""Errors of collectives in compiled programs: all ranks get tfddl's message, and the job goes on."""

import contextlib
import ctypes
import io
import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, run_script
from tests.xla.support import jit, without_kernels
from tfddl.build import locate
from tfddl.build.compile import CompileError
from tfddl.runtime import xla


def _goes_on(hvd):
    for run in (
        jit(lambda x: hvd.allreduce(x, op=hvd.Sum)),
        lambda x: hvd.allreduce(x, op=hvd.Sum, name="after"),
    ):
        assert float(run(tf.constant(1.0))) == hvd.size()


@on_ranks(2, 3)
def test_different_shapes(hvd):
    run = jit(lambda x: hvd.allreduce(x, name="x") + 1)
    for _ in range(2):
        with pytest.raises(
            tf.errors.OpError, match=r"The ranks submitted 'x' with different arguments: rank 0: float32"
        ):
            run(tf.ones([2 + hvd.rank()]))
    _goes_on(hvd)


@on_ranks(2, 3)
def test_the_first_of_several_fails(hvd):
    @jit
    def run(x):
        return hvd.allreduce(x, name="a", prescale_factor=1.0 + hvd.rank()), hvd.allreduce(x, name="b")

    with pytest.raises(tf.errors.OpError, match=r"'a' with different arguments: rank 0: prescale_factor=1.0"):
        run(tf.ones([2]))
    _goes_on(hvd)


@on_ranks(2, 3)
def test_allgather_of_different_numbers_of_rows(hvd):
    with pytest.raises(tf.errors.OpError, match=r"needs equally many rows from all ranks.*rows by rank 1, 2"):
        jit(lambda x: hvd.allgather(x))(tf.ones([hvd.rank() + 1, 2]))
    _goes_on(hvd)


@on_ranks(2, 3)
def test_rows_that_only_a_compiled_peer_refuses(hvd):
    """The other ranks, which have the memory, get the same error."""
    run = (jit if hvd.rank() == 0 else tf.function)(lambda x: hvd.allgather(x, name="rows"))
    reason = (
        "needs equally many rows" if hvd.rank() == 0 else "rank 0 has compiled its program for other rows"
    )
    with pytest.raises(tf.errors.OpError, match=reason):
        run(tf.ones([hvd.rank() + 1, 2]))
    _goes_on(hvd)


@on_ranks(2, 3)
def test_alltoall_that_does_not_split_evenly(hvd):
    x = tf.range(hvd.size() + 1)
    for splits in (None, tf.constant([2, *[1] * (hvd.size() - 1)])):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"sends equally many rows to each rank"):
            jit(lambda x, splits=splits: hvd.alltoall(x, splits))(x)
    for count in (hvd.size() - 1, hvd.size() + 1):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=rf"one number for each of .* Received: {count} num"
        ):
            jit(lambda x, count=count: hvd.alltoall(x, tf.constant([2] * count)))(tf.range(2 * hvd.size()))
    _goes_on(hvd)


@on_ranks(1)
def test_an_operation_that_the_dtype_lacks(hvd):
    """The XLA kernels refuse the call with the message of the other kernels."""
    from tfddl.runtime import library

    assert hvd.xla_built()  # loads the kernels; the raw op does not
    for kind, x in (("allreduce", tf.constant([True])), ("reducescatter", tf.constant([1.0]))):
        op = hvd.Sum if kind == "allreduce" else hvd.Min

        def run(x, kind=kind, op=op):
            return getattr(library.ops(), f"tfddl_{kind}")(x=[x], tensor_name="lacks", reduce_op=op)

        message = rf"{kind} does not support this reduce_op for this dtype: .* Received: reduce_op={op}, {x.dtype.name}"
        for call in (run, jit(run)):
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                call(x)


@on_ranks(1, 2)
def test_a_shape_that_depends_on_values(hvd):
    x = tf.range(4.0)
    for collective in (
        hvd.allreduce,
        hvd.allgather,
        hvd.alltoall,
        hvd.reducescatter,
        lambda x, name: hvd.broadcast(x, 0, name),
        lambda x, name: hvd.grouped_allreduce([tf.ones([2]), x], name=name),
    ):
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"'masked'.*needs tensors of fixed shape.*Received: f32\[<=4\]",
        ):
            jit(lambda x, of=collective: of(tf.boolean_mask(x, x > 1), name="masked"))(x)
    _goes_on(hvd)


@on_ranks(1, 2)
def test_a_root_that_is_no_rank(hvd):
    with pytest.raises(tf.errors.OpError, match=r"root_rank must be in \[0, \d\): .* Received: 7"):
        jit(lambda x: hvd.broadcast(x, 7))(tf.ones([2]))
    _goes_on(hvd)


@on_ranks(1)
def test_after_shutdown(hvd):
    run = jit(lambda x: hvd.allreduce(x) + tf.cast(hvd.rank_op(), tf.float32))
    run(tf.ones([2]))
    traced = jit(lambda x: hvd.allreduce(x, name="compiled.late")).get_concrete_function(tf.ones([2]))
    hvd.shutdown()
    try:
        with pytest.raises(tf.errors.OpError, match=r"tfddl has not been initialized; use hvd.init\(\)"):
            run(tf.ones([2]))
        with pytest.raises(tf.errors.OpError, match=r"'compiled.late': tfddl has not been initialized"):
            traced(tf.ones([2]))
    finally:
        hvd.init()
    np.testing.assert_array_equal(run(tf.ones([2])), [1.0, 1.0])


@on_ranks(1, 2)
def test_without_the_kernels(hvd):
    """Tracing raises one sentence; other calls work."""
    with without_kernels():
        assert not hvd.xla_built()
        traced_before = tf.function(lambda x: hvd.allreduce(x))
        traced_before(tf.ones([2]))
        rank = tf.function(lambda: hvd.rank_op())
        rank()
        for call in (
            lambda x: hvd.allreduce(x),
            lambda x: hvd.allgather(x),
            lambda x: traced_before(x),
            lambda x: x + tf.cast(rank(), tf.float32),
            lambda x: hvd.rank_op() + tf.cast(x[0], tf.int32),
        ):
            with pytest.raises(
                ValueError, match=r"cannot run inside a function compiled by XLA without XLA kernels"
            ):
                jit(call)(tf.ones([2]))
        with (
            pytest.raises(ValueError, match=r"use jit_compile=False for the function"),
            hvd.DistributedGradientTape(tf.GradientTape()) as tape,
        ):
            v = tf.Variable(1.0)
            jit(lambda: tape.gradient(v * 2.0, [v]))()
        assert float(tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))(tf.constant(1.0))) == hvd.size()


@on_ranks(1)
def test_kernels_that_do_not_compile_are_said_once(hvd):
    failure = CompileError("tfddl could not compile its XLA kernels")
    said = io.StringIO()
    with (
        mock.patch.object(locate, "locate_xla_library", side_effect=failure),
        contextlib.redirect_stderr(said),
    ):
        assert xla._outcome.__wrapped__() == "they could not be compiled or loaded"
    assert said.getvalue().startswith(f"tfddl: jit_compile=True is not available: {failure}. To silence")
    assert said.getvalue().count("\n") == 1


@on_ranks(1)
def test_those_for_gpus(hvd):
    """They are in the library, or count as absent where TensorFlow sees a GPU."""
    path = str(locate.locate_xla_library())
    version = tuple(int(part) for part in tf.__version__.split(".")[:2])
    assert ctypes.CDLL(path).tfddl_xla_has_gpus() == (version >= (2, 21))
    for present, outcome in ((True, None), (False, "those for GPUs need TensorFlow 2.21 or later")):
        with (
            mock.patch.object(xla._compat, "sees_gpus", return_value=True),
            mock.patch.object(xla, "_load", return_value=present),
        ):
            assert xla._outcome.__wrapped__() == outcome


@on_ranks(1)
def test_the_variable_leaves_them_out(hvd):
    with mock.patch.dict(os.environ, TFDDL_XLA="0"):
        assert xla._outcome.__wrapped__() == "TFDDL_XLA=0"
    with (
        mock.patch.dict(os.environ, TFDDL_XLA="off"),
        pytest.raises(ValueError, match="TFDDL_XLA must be 0 or 1"),
    ):
        xla._outcome.__wrapped__()


LONELY = """
import os

import tensorflow as tf
from mpi4py import MPI

import tfddl as hvd

tf.config.threading.set_inter_op_parallelism_threads(1)
hvd.init()
run = tf.function(lambda x: hvd.allreduce(x, name="lonely"), jit_compile=True)
run(tf.ones([2]))
hvd.shutdown()
os.environ.update(TFDDL_STALL_WARNING="0.5", TFDDL_STALL_LIMIT="2")  # not for the first call, which compiles
hvd.init()
if hvd.rank() == 0:
    try:
        run(tf.ones([2]))
    except tf.errors.OpError as error:
        print("raised:", error, flush=True)
MPI.COMM_WORLD.Barrier()
MPI.COMM_WORLD.Abort(3)
"""


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named():
    result = run_script(2, LONELY)
    (raised,) = [line for line in result.output.splitlines() if "raised:" in line]
    assert "lonely" in raised and "rank 1" in raised
    assert "keeps one of TensorFlow's inter-op threads" in result.output
