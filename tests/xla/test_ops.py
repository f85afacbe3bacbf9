"""Each op in a function compiled by XLA, against NumPy and against the same op without XLA."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.support import array, arrays, check, check_close, mean, total
from tests.xla.support import jit
from tfddl.ops.dtypes import DTYPES


@on_ranks(1, 2)
def test_the_kernels_are_there(hvd):
    assert hvd.xla_built()


@pytest.mark.parametrize("shape", [(), (5,), (0,), (2, 3, 4), (300, 257)])
@on_ranks(1, 2, 3)
def test_allreduce(hvd, shape):
    mine, parts = array(hvd.rank(), "float32", shape), arrays(hvd.size(), "float32", shape)
    check(jit(lambda x: hvd.allreduce(x, op=hvd.Sum))(mine), total(parts))
    check_close(jit(lambda x: hvd.allreduce(x))(mine), mean(parts))


@on_ranks(1, 2, 3)
def test_operations_and_factors(hvd):
    rank, size = hvd.rank(), hvd.size()
    values = np.array([[r + 1, 2 - r, 3] for r in range(size)], "float64")

    @jit
    def run(x):
        return (
            hvd.allreduce(x, op=hvd.Min),
            hvd.allreduce(x, op=hvd.Max),
            hvd.allreduce(x, op=hvd.Product),
            hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
            hvd.allreduce(x, compression=hvd.Compression.fp16),
        )

    expected = values.min(0), values.max(0), values.prod(0), 1.5 * values.sum(0), values.mean(0)
    for result, right in zip(run(values[rank]), expected, strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-3 if right is expected[-1] else 0)


@on_ranks(1, 2, 3)
def test_every_dtype(hvd):
    """Broadcast and allgather of all dtypes, in one program."""
    mine = [tf.cast(array(hvd.rank(), "int32", (3,)) % 2 + hvd.rank(), dtype) for dtype in DTYPES]

    def run(*tensors):
        sent = [hvd.broadcast(x, 0) for x in tensors]
        return sent, [hvd.allgather(x) for x in tensors], hvd.grouped_allreduce(tensors[:-3], op=hvd.Sum)

    for compiled, plain in zip(
        tf.nest.flatten(jit(run)(*mine)), tf.nest.flatten(tf.function(run)(*mine)), strict=True
    ):
        assert compiled.dtype == plain.dtype
        assert compiled.numpy().tobytes() == plain.numpy().tobytes()


@on_ranks(1, 2, 3)
def test_groups(hvd):
    shapes = ((), (3,), (0,), (2, 300))
    mine = [array(hvd.rank(), "float32", shape, seed) for seed, shape in enumerate(shapes)]

    @jit
    def run(*tensors):
        reduced = hvd.grouped_allreduce([tensors[0], None, *tensors[1:]], op=hvd.Sum)
        return [tensor for tensor in reduced if tensor is not None], hvd.grouped_allgather(tensors[1:])

    reduced, gathered = run(*mine)
    for seed, shape in enumerate(shapes):
        check(reduced[seed], total(arrays(hvd.size(), "float32", shape, seed)))
        if shape:
            check(gathered[seed - 1], np.concatenate(arrays(hvd.size(), "float32", shape, seed)))


@on_ranks(1, 2, 3)
def test_broadcast_of_any_rank(hvd):
    for root in range(hvd.size()):
        mine = array(hvd.rank(), "float32", (2, 3))
        check(jit(lambda x, root=root: hvd.broadcast(x, root))(mine), array(root, "float32", (2, 3)))


@on_ranks(1, 2, 3)
def test_reducescatter(hvd):
    rank, size = hvd.rank(), hvd.size()
    parts = total(arrays(size, "float32", (7, 2)))
    rows = [part.shape[0] for part in np.array_split(parts, size)]
    begin = sum(rows[:rank])
    mine = array(rank, "float32", (7, 2))
    expected = parts[begin : begin + rows[rank]]
    check(jit(lambda x: hvd.reducescatter(x, op=hvd.Sum))(mine), expected)
    first, second = jit(lambda x: hvd.grouped_reducescatter([x, 2 * x[:size]], op=hvd.Sum))(mine)
    check(first, expected)
    check(second, 2 * parts[rank : rank + 1])


@on_ranks(1, 2, 3)
def test_alltoall(hvd):
    rank, size = hvd.rank(), hvd.size()
    x = 100 * rank + np.arange(2 * size)
    expected = np.concatenate([100 * r + np.arange(2 * rank, 2 * rank + 2) for r in range(size)])
    np.testing.assert_array_equal(jit(lambda x: hvd.alltoall(x))(x), expected)
    result, received = jit(lambda x: hvd.alltoall(x, splits=tf.fill([size], 2)))(x)
    np.testing.assert_array_equal(result, expected)
    assert received.numpy().tolist() == [2] * size


@on_ranks(1, 2, 3)
def test_place_and_barrier(hvd):
    @jit
    def run(x):
        hvd.barrier()
        return x + hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()

    found = [int(result) for result in run(tf.constant(10))]
    assert found == [10 + hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]


@on_ranks(2, 3)
def test_with_ranks_that_do_not_compile(hvd):
    """Rank 0 compiles and the others do not; names and arguments agree."""

    def run(x):
        rows = tf.tile(x[tf.newaxis], [2 * hvd.size(), 1])
        return (
            hvd.grouped_allreduce([x, 2 * x], op=hvd.Max, prescale_factor=0.5, name="group"),
            hvd.allreduce(x, name="one"),
            hvd.broadcast(x, 1, name="sent"),
            hvd.allgather(rows, name="gathered"),
            hvd.reducescatter(rows, op=hvd.Sum, name="scattered"),
            hvd.alltoall(rows, name="exchanged"),
            hvd.alltoall(rows, splits=tf.fill([hvd.size()], 2), name="split"),
        )

    x = tf.constant([1.0, 2.0]) * (hvd.rank() + 1)
    results = tf.nest.flatten(tf.function(run, jit_compile=hvd.rank() == 0)(x))
    for result in results:
        assert np.isfinite(result.numpy()).all()
    np.testing.assert_array_equal(results[0], tf.constant([0.5, 1.0]) * hvd.size())


@on_ranks(3)
def test_process_sets(hvd):
    """Members run a program of the set; other ranks get an error."""
    last = hvd.size() - 1
    pair = hvd.add_process_set([0, last])
    if pair.included():
        rows = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]) * (hvd.rank() + 1.0)
        reduced, sent, gathered, scattered, numbers = jit(
            lambda x: (
                hvd.allreduce(x, op=hvd.Sum, process_set=pair),
                hvd.broadcast(x, last, process_set=pair),
                hvd.allgather(x, process_set=pair),
                hvd.reducescatter(x, op=hvd.Sum, process_set=pair),
                [hvd.rank_op(process_set=pair), hvd.size_op(pair)],
            )
        )(rows)
        one = rows / (hvd.rank() + 1.0)
        np.testing.assert_array_equal(reduced, one * (last + 2))
        np.testing.assert_array_equal(sent, one * (last + 1))
        np.testing.assert_array_equal(gathered, tf.concat([one, one * (last + 1)], 0))
        np.testing.assert_array_equal(scattered, one[pair.rank() : pair.rank() + 1] * (last + 2))
        assert [int(number) for number in numbers] == [pair.rank(), 2]
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"rank 1 is not a member of process set"):
            jit(lambda x: hvd.allreduce(x, process_set=pair))(tf.ones([1]))
    hvd.remove_process_set(pair)
