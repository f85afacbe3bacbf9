"""join: ranks without data let the others go on, with the results of the ranks that have not joined."""

import functools
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.join.uneven import STEPS, active, longest, without
from tests.ops.support import MODES, array, check, check_close, numpy_type, total
from tests.ops.test_mismatch import works


@pytest.mark.parametrize("average_over", ["size", "active"])
@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3, full=(4,))
def test_uneven_steps(hvd, mode, average_over):
    size, rank = hvd.size(), hvd.rank()

    def body(x, y):
        return hvd.allreduce(x, op=hvd.Average), hvd.grouped_allreduce([x, y], op=hvd.Sum)

    run = tf.function(body) if mode == "graph" else body
    for _ in range(2):  # epochs
        for step in range(STEPS[rank]):
            average, (one, two) = run(tf.constant(array(rank, "float64", seed=step)), tf.ones([2], "float64"))
            parts = [array(other, "float64", seed=step) for other in active(step, size)]
            divisor = size if average_over == "size" else len(parts)
            check_close(average, total(parts) / divisor)
            check(one, total(parts))
            check(two, np.full(2, len(parts), "float64"))
        last = hvd.join(average_over=average_over)
        assert isinstance(last, int) and last == longest(size)
    works(hvd)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "int8", "uint64", "bool", "complex64", "complex128"]
)
@on_ranks(2, 3, full=(4,))
def test_every_operation(hvd, dtype):
    """Ranks that have joined count as the neutral element, for every dtype."""
    parts = [np.abs(array(rank, "int64", (40,), seed=7)) + 1 for rank in range(hvd.size())]
    if dtype == "bool":
        parts = [part > 5 for part in parts]
        operations = {hvd.Min: np.logical_and, hvd.Max: np.logical_or}
    elif dtype.startswith("complex"):
        parts = [(part * (1 + 2j)).astype(dtype) for part in parts]
        operations = {hvd.Sum: np.add, hvd.Product: np.multiply}
    else:
        parts = [part.astype(numpy_type(dtype)) for part in parts]
        operations = {hvd.Sum: np.add, hvd.Product: np.multiply, hvd.Min: np.minimum, hvd.Max: np.maximum}
    wide = "float32" if parts[0].dtype.itemsize == 2 else parts[0].dtype

    def body():
        for op, combine in operations.items():
            expected = functools.reduce(combine, [part.astype(wide) for part in parts[1:]]).astype(
                parts[0].dtype
            )
            result = hvd.allreduce(tf.constant(parts[hvd.rank()]), op=op)
            assert result.dtype.name == dtype
            np.testing.assert_array_equal(result.numpy(), expected)

    without(hvd, [0], body)


@on_ranks(2, 3, full=(4,))
def test_factors(hvd):
    """Factors that reverse the order, or that would change a neutral element."""
    x = tf.constant([1.0, -2.0, 0.0])
    count = hvd.size() - 1

    def body():
        check(hvd.allreduce(x, op=hvd.Min, prescale_factor=-1.0), np.array([-1, 2, 0], "float32"))
        product = hvd.allreduce(x, op=hvd.Product, prescale_factor=2.0, postscale_factor=3.0)
        check(product, 3 * np.array([2, -4, 0], "float32") ** count)
        infinite = hvd.allreduce(tf.ones([2]), op=hvd.Sum, prescale_factor=float("inf"))
        check(infinite, np.full(2, np.inf, "float32"))

    without(hvd, [hvd.size() - 1], body)


@pytest.mark.parametrize("mode", MODES)
@on_ranks(2, 3, full=(4,))
def test_rows(hvd, mode):
    size, rank = hvd.size(), hvd.rank()
    joined = [0] if size < 4 else [0, 2]
    others = [other for other in range(size) if other not in joined]

    def values(other, rows):
        return np.arange(rows * 2, dtype="float32").reshape(rows, 2) + 100 * other

    def body():
        x = tf.constant(values(rank, rank + 1))
        gathered = hvd.allgather(x)
        pair = hvd.grouped_allgather([x, x[:0]])
        scattered = hvd.reducescatter(tf.constant(values(rank, 2 * size + 1)), op=hvd.Average)
        dropped, came = hvd.alltoall(tf.constant(values(rank, size)), tf.ones([size], tf.int32))
        return gathered, pair, scattered, dropped, came

    def run():
        return (tf.function(body) if mode == "graph" else body)()

    results = without(hvd, joined, run, average_over="active")
    if rank in joined:
        return
    gathered, pair, scattered, dropped, came = results
    rows = np.concatenate([values(other, other + 1) for other in others])
    check(gathered, rows)
    check(pair[0], rows)
    check(pair[1], rows[:0])
    average = np.mean([values(other, 2 * size + 1) for other in others], axis=0)
    check_close(scattered, np.array_split(average, size)[rank].astype("float32"))
    check(dropped, np.stack([values(other, size)[rank] for other in others]))
    check(came, np.array([other in others for other in range(size)], "int32"))


@on_ranks(2, 3, full=(4,))
def test_what_needs_no_rows(hvd):
    last = hvd.size() - 1

    def body():
        hvd.barrier()
        check(hvd.broadcast(tf.fill([3], float(hvd.rank())), last), np.full(3, last, "float32"))
        assert hvd.broadcast_object({"from": hvd.rank()}, last) == {"from": last}
        assert hvd.allgather_object(hvd.rank()) == list(range(1, hvd.size()))
        with pytest.raises(TypeError, match=f"rank {last}: "):
            hvd.allgather_object(threading.Lock() if hvd.rank() == last else 0)

    without(hvd, [0], body)


@on_ranks(2, 3, full=(4,))
def test_a_broadcast_from_a_rank_that_has_joined(hvd):
    def body():
        for _ in range(2):  # a new name, and a known one
            with pytest.raises(
                tf.errors.FailedPreconditionError, match=r"root, rank 0, has joined"
            ) as caught:
                hvd.broadcast(tf.ones([3]), 0, name="from.joined")
            assert "'from.joined'" in caught.value.message
            check(hvd.allreduce(tf.ones([2]), op=hvd.Sum), np.full(2, hvd.size() - 1, "float32"))

    without(hvd, [0], body)
    check(hvd.broadcast(tf.fill([3], hvd.rank() + 1), 0, name="from.joined"), np.ones(3, "int32"))


@on_ranks(3, full=(4,))
def test_a_mismatch_quotes_who_has_not_joined(hvd):
    def body():
        with pytest.raises(tf.errors.FailedPreconditionError) as caught:
            hvd.allreduce(tf.ones([hvd.rank()]), op=hvd.Sum, name="uneven")
        assert "arguments: rank 1: float32 [1]; rank 2: float32 [2]" in caught.value.message
        assert "rank 0" not in caught.value.message

    without(hvd, [0], body)
    works(hvd)


@on_ranks(2)
def test_different_divisors(hvd):
    for _ in range(2):
        with pytest.raises(tf.errors.FailedPreconditionError) as caught:
            hvd.join(average_over=["size", "active"][hvd.rank()])
        assert "rank 0: average_over='size'; rank 1: average_over='active'" in caught.value.message
        works(hvd)
        hvd.join(average_over="active")


@on_ranks(1, 2)
def test_arguments(hvd):
    with pytest.raises(ValueError, match=r"one of 'size', 'active': .* Received: average_over='all'"):
        hvd.join(average_over="all")
    assert 0 <= hvd.join() < hvd.size()
