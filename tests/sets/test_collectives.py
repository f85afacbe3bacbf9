"""Every collective on subsets of the ranks, against NumPy on the members' inputs, with gradients."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.support import MODES, call, check, check_close, mean, total
from tests.sets.support import added, parts, subsets

SIZES = (1, 2, 3)


def included(hvd, sets):
    """For each set of this rank, also the global one: the set, the inputs of its members, and this rank's index in it."""
    for one in [hvd.global_process_set, *sets]:
        if one.included():
            yield one, parts(one, hvd.size()), one.rank()


@pytest.mark.parametrize("mode", MODES)
@on_ranks(*SIZES, full=(4,))
def test_allreduce(hvd, mode):
    reductions = {
        hvd.Sum: total,
        hvd.Average: mean,
        hvd.Min: lambda values: np.minimum.reduce(values),
        hvd.Max: lambda values: np.maximum.reduce(values),
        hvd.Product: lambda values: np.multiply.reduce(values),
    }
    with added(hvd, *subsets(hvd.size())) as sets:
        for one, inputs, index in included(hvd, sets):
            for op, expected in reductions.items():
                result = call(
                    mode, lambda x, one=one, op=op: hvd.allreduce(x, op=op, process_set=one), inputs[index]
                )
                check_close(result, expected(inputs))
            pair = call(
                mode,
                lambda x, one=one: hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum, process_set=one),
                inputs[index],
            )
            check(pair[1], 2 * total(inputs))


@pytest.mark.parametrize("mode", MODES)
@on_ranks(*SIZES, full=(4,))
def test_gather_and_scatter(hvd, mode):
    with added(hvd, *subsets(hvd.size())) as sets:
        for one, _, index in included(hvd, sets):
            size = one.size()
            rows = [np.full([rank + 1, 2], rank, "float32") for rank in one.ranks]
            check(
                call(mode, lambda x, one=one: hvd.allgather(x, process_set=one), rows[index]),
                np.concatenate(rows),
            )
            both = call(mode, lambda x, one=one: hvd.grouped_allgather([x, -x], process_set=one), rows[index])
            check(both[1], -np.concatenate(rows))
            inputs = parts(one, hvd.size(), shape=[size + 1, 2])
            expected = np.array_split(total(inputs), size)[index]
            scatter = lambda x, one=one: hvd.reducescatter(x, op=hvd.Sum, process_set=one)  # noqa: E731
            check(call(mode, scatter, inputs[index]), expected)
            grouped = lambda x, one=one: hvd.grouped_reducescatter([x], op=hvd.Sum, process_set=one)  # noqa: E731
            check(call(mode, grouped, inputs[index])[0], expected)


@pytest.mark.parametrize("mode", MODES)
@on_ranks(*SIZES, full=(4,))
def test_alltoall(hvd, mode):
    with added(hvd, *subsets(hvd.size())) as sets:
        for one, _, index in included(hvd, sets):
            sent = [np.arange(one.size(), dtype="float32") + 10 * rank for rank in one.ranks]
            expected = np.array([row[index] for row in sent])
            check(call(mode, lambda x, one=one: hvd.alltoall(x, process_set=one), sent[index]), expected)
            splits = tf.ones([one.size()], tf.int32)
            split = lambda x, one=one, splits=splits: hvd.alltoall(x, splits, process_set=one)  # noqa: E731
            rows, received = call(mode, split, sent[index])
            check(rows, expected)
            check(received, np.ones(one.size(), "int32"))
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"each of the {one.size()} ranks"):
                hvd.alltoall(tf.ones([9]), tf.ones([one.size() + 1], tf.int32), process_set=one)


@pytest.mark.parametrize("mode", MODES)
@on_ranks(*SIZES, full=(4,))
def test_broadcast_from_a_rank_of_the_job(hvd, mode):
    with added(hvd, *subsets(hvd.size())) as sets:
        for one, inputs, index in included(hvd, sets):
            for root, expected in zip(one.ranks, inputs, strict=True):
                send = lambda x, one=one, root=root: hvd.broadcast(x, root, process_set=one)  # noqa: E731
                check(call(mode, send, inputs[index]), expected)
                variables = [tf.Variable(inputs[index]), tf.Variable(-inputs[index])]
                hvd.broadcast_variables(variables, root, process_set=one)
                check(variables[1].value(), -expected)
                variables = [tf.Variable(inputs[index])]
                check(hvd.broadcast_(variables, root, process_set=one)[0], expected)
                assert hvd.broadcast_object(hvd.rank(), root, process_set=one) == root
                assert hvd.broadcast_object_fn(root, process_set=one)(hvd.rank()) == root
            hvd.barrier(process_set=one)
            assert hvd.allgather_object(("rank", hvd.rank()), process_set=one) == [
                ("rank", r) for r in one.ranks
            ]


@on_ranks(2, 3)
def test_an_object_that_pickle_does_not_take(hvd):
    last = hvd.size() - 1
    with added(hvd, [last]) as (only,):
        if only.included():
            for function in (
                hvd.allgather_object,
                lambda x, process_set: hvd.broadcast_object(x, last, None, None, process_set),
            ):
                with pytest.raises(TypeError, match=f"rank {last}: "):
                    function((each for each in "ab"), process_set=only)


@pytest.mark.parametrize("mode", MODES)
@on_ranks(*SIZES, full=(4,))
def test_slices(hvd, mode):
    """Slices of row 0 and of another row for each member."""
    with added(hvd, *subsets(hvd.size())) as sets:
        for one, _, index in included(hvd, sets):

            def reduce(values, indices, one=one):
                slices = tf.IndexedSlices(values, indices, tf.constant([10, 2]))
                return tf.convert_to_tensor(hvd.allreduce(slices, process_set=one))

            expected = np.zeros([10, 2], "float32")
            for rank in one.ranks:
                expected[0] += 4 * (rank + 1) / one.size()
                expected[rank + 1] += 8 / one.size()
            values = np.array([[4 * (hvd.rank() + 1)] * 2, [8] * 2], "float32")
            check_close(call(mode, reduce, values, np.array([0, hvd.rank() + 1], "int64")), expected)
            assert index == one.ranks.index(hvd.rank())


def _gradient(function, x):
    """Of a loss that weighs the results by the rank of the job."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = function(x)
    return tape.gradient(loss, x)


@pytest.mark.parametrize("mode", MODES)
@on_ranks(*SIZES, full=(4,))
def test_gradients(hvd, mode):
    """The cotangent is `rank + 1` on each member; only cotangents of members are added up."""
    weight = float(hvd.rank() + 1)
    with added(hvd, *subsets(hvd.size())) as sets:
        for one, _, index in included(hvd, sets):
            size, weights = one.size(), [rank + 1.0 for rank in one.ranks]
            x = np.full([size, 2], 2.0, "float32")
            operations = {
                "sum": (lambda x, one=one: hvd.allreduce(x, op=hvd.Sum, process_set=one), sum(weights)),
                "average": (lambda x, one=one: hvd.allreduce(x, process_set=one), sum(weights) / size),
                "max": (
                    lambda x, one=one: hvd.allreduce(x, op=hvd.Max, process_set=one),
                    sum(weights) / size,
                ),
                "product": (
                    lambda x, one=one: hvd.allreduce(x, op=hvd.Product, process_set=one),
                    sum(weights) * 2.0 ** (size - 1),
                ),
                "broadcast": (
                    lambda x, one=one: hvd.broadcast(x, one.ranks[-1], process_set=one),
                    sum(weights) if index == size - 1 else 0.0,
                ),
                "allgather": (lambda x, one=one: hvd.allgather(x, process_set=one), sum(weights)),
            }
            for function, expected in operations.values():
                loss = lambda x, function=function: weight * tf.reduce_sum(function(x))  # noqa: E731
                result = call(mode, lambda x, loss=loss: _gradient(loss, x), x)
                check_close(result, np.full([size, 2], expected, "float32"))
            by_row = {
                "reducescatter": (lambda x, one=one: hvd.reducescatter(x, process_set=one), 1 / size),
                "alltoall": (lambda x, one=one: hvd.alltoall(x, process_set=one), 1.0),
            }
            for function, factor in by_row.values():
                loss = lambda x, function=function: weight * tf.reduce_sum(function(x))  # noqa: E731
                result = call(mode, lambda x, loss=loss: _gradient(loss, x), x)
                check_close(
                    result, np.repeat(np.array([weights], "float32").T * np.float32(factor), 2, axis=1)
                )


@on_ranks(2, 3, full=(4,))
def test_mismatch_quotes_ranks_of_the_job(hvd):
    last = hvd.size() - 1
    with added(hvd, *([[1, last]] if last > 1 else [])) as sets:
        one = sets[0] if sets else hvd.global_process_set
        if one.included():
            first = one.ranks[0]
            text = rf"rank {first}: float32 \[3\]; rank {last}: float32 \[4\]"
            with pytest.raises(tf.errors.FailedPreconditionError, match=text):
                hvd.allreduce(tf.ones([3 if hvd.rank() == first else 4]), name="mismatch", process_set=one)
            check(
                hvd.allreduce(tf.ones([3]), op=hvd.Sum, name="mismatch", process_set=one),
                np.full(3, 2, "float32"),
            )


@on_ranks(2)
def test_sessions(hvd):
    with added(hvd, [0], [1]) as sets:
        mine = sets[hvd.rank()]
        graph = tf.Graph()
        with graph.as_default():
            x = tf.compat.v1.placeholder(tf.float32, [3])
            own, both = hvd.allreduce(x, op=hvd.Sum, process_set=mine), hvd.allreduce(x, op=hvd.Sum)
        with tf.compat.v1.Session(graph=graph) as session:
            for value in range(3):
                results = session.run([own, both], {x: [value] * 3})
                np.testing.assert_array_equal(results, [[value] * 3, [2 * value] * 3])
            assert hvd.allgather_object(hvd.rank(), session, process_set=mine) == [hvd.rank()]
            assert hvd.allgather_object(hvd.rank(), session) == [0, 1]
