"""join: ranks whose data has ended let the others go on, with numbers as if only these had been asked."""

import functools
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from mpi4py import MPI

from tests.harness import on_ranks
from tests.ops.support import MODES, array, check, check_close, numpy_type, total
from tests.ops.test_mismatch import works
from tfddl.runtime import stats

v1 = tf.compat.v1
STEPS = (3, 1, 4, 2)
"""By rank: how often it calls before its data ends."""


def active(step, size):
    """The ranks that still have data at this step."""
    return [rank for rank in range(size) if step < STEPS[rank]]


def longest(size):
    """Whoever has the most steps joins last."""
    return int(np.argmax(STEPS[:size]))


def without(hvd, joined, body, **options):
    """Calls `body` on the ranks that are not among `joined`, while those have joined; all join in the end."""
    result = None if hvd.rank() in joined else body()
    last = hvd.join(**options)
    assert last not in joined
    return result


@pytest.mark.parametrize("average_over", ["size", "active"])
@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3, 4)
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
@on_ranks(2, 3, 4)
def test_every_operation(hvd, dtype):
    """Those that have joined bring the neutral element, whatever the dtype."""
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


@on_ranks(2, 3, 4)
def test_factors(hvd):
    """A factor that turns the order round, or that no neutral element would survive."""
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
@on_ranks(2, 3, 4)
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


@on_ranks(2, 3, 4)
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


@on_ranks(2, 3, 4)
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


@on_ranks(3, 4)
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
    with pytest.raises(ValueError, match=r"one of 'size', 'active'\. Received: average_over='all'"):
        hvd.join(average_over="all")
    assert 0 <= hvd.join() < hvd.size()


@on_ranks(2, 3)
def test_other_threads(hvd):
    """What another thread has called before is finished first, what it calls afterwards is refused."""
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
        while stats()["votes"] == votes:  # the first vote that it took part in
            time.sleep(0.01)
        joins = [start(name, hvd.join) for name in ("one", "other")]
        while not results:  # the second of them
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
    """It runs behind the collectives before it, and those that come after it wait for it."""

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


@on_ranks(1, 2, 3)
def test_in_a_session(hvd):
    with tf.Graph().as_default() as graph:
        y = hvd.allreduce(tf.ones([2]), op=hvd.Sum)
        last = hvd.join(average_over="active")
    with v1.Session(graph=graph) as session:
        for _ in range(2):
            for step in range(STEPS[hvd.rank()] - 1):
                np.testing.assert_array_equal(session.run(y), [len(active(step, hvd.size()))] * 2)
            assert session.run([y, last])[1] in range(hvd.size())


@pytest.mark.parametrize("average_over", ["size", "active"])
@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3, 4)
def test_training_with_uneven_data(hvd, mode, average_over):
    """The example of docs/data.md: a tape, uneven batches, and the weights of whoever was the last."""
    size, rank = hvd.size(), hvd.rank()
    w, rows = tf.Variable(tf.zeros([3])), tf.Variable(tf.ones([4, 2]))
    batches = [array(rank, "float32", (5, 3), seed=step) for step in range(STEPS[rank])]

    def step(x):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, w) - 1.0))
            loss += tf.reduce_sum(tf.square(tf.gather(rows, [rank % 4, 1])))
        dense, sparse = tape.gradient(loss, [w, rows])
        assert isinstance(sparse, tf.IndexedSlices)
        w.assign_sub(0.001 * dense)
        rows.assign_sub(0.001 * tf.convert_to_tensor(sparse))

    run = tf.function(step) if mode == "graph" else step
    expected_w, expected_rows = np.zeros(3), np.ones((4, 2))
    for _ in range(2):
        for x in batches:
            run(tf.constant(x))
        last = hvd.join(average_over=average_over)
        hvd.broadcast_variables([w, rows], root_rank=last)
        for number in range(max(STEPS[:size])):
            here = active(number, size)
            dense, sparse = np.zeros(3), np.zeros((4, 2))
            for other in here:
                x = array(other, "float64", (5, 3), seed=number)
                dense += 2 * x.T @ (x @ expected_w - 1) / len(x)
                for index in (other % 4, 1):
                    sparse[index] += 2 * expected_rows[index]
            divisor = size if average_over == "size" else len(here)
            expected_w -= 0.001 * dense / divisor
            expected_rows -= 0.001 * sparse / divisor
        np.testing.assert_allclose(w, expected_w, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(rows, expected_rows, rtol=1e-5)


@on_ranks(2, 3)
def test_an_optimizer_with_uneven_data(hvd):
    """Keras' optimizer, an embedding among the weights, its state sent along."""
    size, rank = hvd.size(), hvd.rank()
    model = keras.Sequential([keras.layers.Embedding(5, 2), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.build((None, 3))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5))
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, 0)
    reference = keras.models.clone_model(model)
    reference.set_weights(model.get_weights())
    plain = keras.optimizers.SGD(0.1, momentum=0.5)

    def gradients(network, other, number):
        ids = np.abs(array(other, "int32", (4, 3), seed=number)) % 5
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(network(ids) - 1.0))
        return tape.gradient(loss, network.trainable_variables)

    for number in range(STEPS[rank]):
        optimizer.apply_gradients(zip(gradients(model, rank, number), model.trainable_variables, strict=True))
    last = hvd.join()
    hvd.broadcast_variables([*model.variables, *optimizer.variables], last)
    for number in range(max(STEPS[:size])):
        parts = [gradients(reference, other, number) for other in active(number, size)]
        averages = [sum(map(tf.convert_to_tensor, part)) / size for part in zip(*parts, strict=True)]
        plain.apply_gradients(zip(averages, reference.trainable_variables, strict=True))
    for mine, theirs in zip(model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert int(optimizer.iterations.numpy()) == max(STEPS[:size])


@pytest.mark.parametrize("average_over", ["size", "active"])
@on_ranks(2, 3, 4)
def test_gradients(hvd, average_over):
    """Those of the ranks that are left, with respect to what they brought."""
    size, rank = hvd.size(), hvd.rank()
    others = range(1, size)
    divisor = size if average_over == "size" else size - 1
    inputs = [array(other, "float32", (2 * size + 1, 2), seed=3) for other in range(size)]

    def gradient(function):
        x = tf.constant(inputs[rank])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            # Whoever computes an element gives it its own weight.
            loss = tf.reduce_sum(y * tf.cast(rank + 1, y.dtype))
        return tape.gradient(loss, x).numpy()

    def body():
        weights = sum(other + 1 for other in others)
        ones = np.ones_like(inputs[0])
        np.testing.assert_allclose(gradient(lambda x: hvd.allreduce(x)), weights * ones / divisor, rtol=1e-6)
        np.testing.assert_allclose(gradient(lambda x: hvd.allgather(x)), weights * ones)
        product = gradient(lambda x: hvd.allreduce(x, op=hvd.Product, prescale_factor=2.0))
        rest = [2 * inputs[other] for other in others if other != rank]
        np.testing.assert_allclose(product, 2 * weights * functools.reduce(np.multiply, rest, ones))
        owners = np.concatenate([np.full(len(part), r) for r, part in enumerate(np.array_split(ones, size))])
        mine = np.where(owners == 0, 0, owners + 1)[:, np.newaxis] * ones
        np.testing.assert_allclose(gradient(lambda x: hvd.reducescatter(x)), mine / divisor, rtol=1e-6)
        splits = [2, 1] + [1] * (size - 2)
        sent = np.concatenate([np.repeat(np.arange(size), splits), np.full(2 * size + 1 - sum(splits), 0)])
        mine = np.where(sent == 0, 0, sent + 1)[:, np.newaxis] * ones
        np.testing.assert_allclose(gradient(lambda x: hvd.alltoall(x, splits)[0]), mine)
        even = np.repeat(np.arange(size), 2)[:, np.newaxis]
        mine = np.where(even == 0, 0, even + 1) * ones[: 2 * size]
        np.testing.assert_allclose(gradient(lambda x: hvd.alltoall(x[: 2 * size]))[: 2 * size], mine)

    without(hvd, [0], body, average_over=average_over)
