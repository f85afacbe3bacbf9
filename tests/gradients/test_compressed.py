"""Compressions that keep their errors, against their papers in NumPy; ranks that have joined."""

import contextlib
import functools
import logging
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, run_script
from tfddl.gradients import residuals

STEPS = 20
SHAPES = [(12, 10), (3, 3, 2, 6), (10,), (2, 2), ()]


def gradients_of(rank, step, shapes=SHAPES):
    """Gradients with a part that differs by rank and step, and a part that all steps have."""
    return [
        np.random.default_rng([rank, step, slot]).normal(size=shape)
        + 2 * np.random.default_rng([rank, slot]).normal(size=shape)
        for slot, shape in enumerate(shapes)
    ]


class PowerSGDInNumpy:
    """Algorithms 1 and 2 of arXiv 1905.13727 for all ranks, in float64."""

    def __init__(self, size, rank, shapes=SHAPES):
        self.size, self.shapes, self.q, self.e = size, shapes, {}, {}
        for slot, shape in enumerate(shapes):
            n, m = (int(np.prod(shape[:-1])), shape[-1]) if len(shape) > 1 else (1, 1)
            if len(shape) > 1 and (n + m) * min(rank, n, m) < n * m:
                self.q[slot] = np.random.default_rng([0, slot]).normal(size=[m, min(rank, n, m)])
                self.e[slot] = np.zeros([size, n, m])

    def step(self, ranks):
        """The combined gradients of `ranks[rank][slot]`."""
        results = list(np.mean(each, axis=0) for each in zip(*ranks, strict=True))
        for slot, q in self.q.items():
            matrices = [ranks[rank][slot].reshape(e.shape) + e for rank, e in enumerate(self.e[slot])]
            p, _ = np.linalg.qr(np.mean([each @ q for each in matrices], axis=0))
            self.q[slot] = np.mean([each.T @ p for each in matrices], axis=0)
            product = p @ self.q[slot].T
            self.e[slot] = np.stack([each - product for each in matrices])
            results[slot] = product.reshape(self.shapes[slot])
        return results


@contextlib.contextmanager
def without_warnings():
    """AutoGraph warns of functions that it cannot convert."""
    with mock.patch.object(logging.getLogger("tensorflow"), "handle") as handle:
        yield
    assert [call.args[0].getMessage() for call in handle.call_args_list] == []


def tape_step(hvd, variables, jit=False, eager=False, **options):
    """A function from this rank's gradients to the combined ones."""

    def step(*given):
        with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            loss = tf.add_n([tf.reduce_sum(v * g) for v, g in zip(variables, given, strict=True)])
        return tape.gradient(loss, variables)

    return step if eager else tf.function(step, jit_compile=jit or None)


def constants(arrays):
    return [tf.constant(each, tf.float32) for each in arrays]


def check_same_bits(hvd, tensors):
    text = [np.asarray(each).tobytes() for each in tensors]
    assert hvd.allgather_object(text) == [text] * hvd.size()


@on_ranks(1, 2, 3)
def test_power_sgd_is_the_paper(hvd):
    check_power_sgd(hvd, "eager")


@pytest.mark.parametrize("mode", ["graph", "jit"])
@on_ranks(2, full=(1, 3))
def test_power_sgd_in_functions(hvd, mode):
    check_power_sgd(hvd, mode)


def check_power_sgd(hvd, mode):
    from tfddl.runtime import stats

    compression = hvd.PowerSGD(rank=2)
    assert compression.variables == []
    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    step = tape_step(hvd, variables, mode == "jit", mode == "eager", compression=compression)
    paper = PowerSGDInNumpy(hvd.size(), 2)
    assert list(paper.q) == [0, 1]
    before = stats()["bytes_reduced"]
    for number in range(STEPS):
        ranks = [gradients_of(rank, number) for rank in range(hvd.size())]
        with without_warnings():
            found = step(*constants(ranks[hvd.rank()]))
        check_same_bits(hvd, found)
        for one, expected in zip(found, paper.step(ranks), strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-3, atol=1e-3)
    numbers = 2 * (12 + 10 + 18 + 6) + 10 + 4 + 1 + 1
    assert stats()["bytes_reduced"] - before == STEPS * 4 * numbers
    errors = compression.variables[:2]
    for error, slot in zip(errors, paper.q, strict=True):
        np.testing.assert_allclose(error, paper.e[slot][hvd.rank()], rtol=1e-3, atol=2e-3)
    check_same_bits(hvd, compression.variables[2:])
    ways = 2 * (hvd.size() - 1) / hvd.size()
    sent, uncompressed = compression.bytes_per_step()
    assert sent == pytest.approx(ways * 4 * numbers)
    assert uncompressed == pytest.approx(ways * 4 * sum(int(np.prod(shape)) for shape in SHAPES))


@on_ranks(1, 2, 3)
def test_int8_keeps_what_it_has_not_sent(hvd):
    check_int8(hvd, "eager")


@pytest.mark.parametrize("mode", ["graph", "jit"])
@on_ranks(2, full=(1, 3))
def test_int8_in_functions(hvd, mode):
    check_int8(hvd, mode)


@on_ranks(4)
def test_int8_by_hosts(hvd):
    """The ranks of a host add up before they round."""
    from tfddl.ops import native
    from tfddl.runtime.job import process

    for layout in ((0, 0, 2, 2), (0, 1, 1, 0)):
        with (
            mock.patch.object(process.job, "hosts", layout),
            mock.patch.object(native, "alltoall", wraps=native.alltoall) as alltoall,
        ):
            check_int8(hvd, "graph")
        steps = {call.args[2].rpartition(".")[2] for call in alltoall.call_args_list}
        assert steps == {"host", "values"}
    with mock.patch.object(process.job, "hosts", layout):
        check_int8_errors(hvd)


def check_int8_errors(hvd):
    """All ranks get an error, also those whose own exchange lacks nothing, and the next collective works."""
    variables = [tf.Variable(tf.zeros([300])), tf.Variable(tf.zeros([900]))]

    def gradients(count):
        with hvd.DistributedGradientTape(tf.GradientTape(), compression=hvd.Compression.int8()) as tape:
            loss = tf.add_n([tf.reduce_sum(variable) for variable in variables[:count]])
        return tape.gradient(loss, variables)

    last = hvd.rank() == hvd.size() - 1
    with pytest.raises(tf.errors.FailedPreconditionError, match="1 gradients in 1 buckets"):
        gradients(1 if last else 2)
    assert hvd.allreduce(1.0, op=hvd.Sum) == hvd.size()
    if not last:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"some have called hvd\.join"):
            gradients(2)
        assert hvd.allreduce(1.0, op=hvd.Sum) == hvd.size() - 1
    hvd.join()
    empty = tape_step(hvd, [tf.Variable(tf.zeros([5, 0]))], compression=hvd.Compression.int8())
    assert empty(tf.zeros([5, 0]))[0].shape == (5, 0)


def check_int8(hvd, mode):
    """e is g + e - sent, and the sum of all results is the sum of all gradients, less what the residuals hold."""
    shapes = [(700,), (3, 5), ()]
    compression = hvd.Compression.int8()
    variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
    step = tape_step(hvd, variables, mode == "jit", mode == "eager", compression=compression)
    mean, results = np.zeros(716), np.zeros(716)
    for number in range(STEPS):
        ranks = [gradients_of(rank, number, shapes) for rank in range(hvd.size())]
        with without_warnings():
            found = step(*constants(ranks[hvd.rank()]))
        check_same_bits(hvd, found)
        flat = [np.concatenate([each.ravel() for each in reversed(one)]) for one in ranks]
        mean += np.mean(flat, axis=0)  # a bucket begins with the last gradient
        result = np.concatenate([np.ravel(each) for each in reversed(found)])
        results += result
    count, error, slice_error = compression.variables
    assert count.numpy() == STEPS
    everything = hvd.allgather_object((error.numpy().ravel(), slice_error.numpy().ravel()))
    left = np.mean([one for one, _ in everything], axis=0) + np.concatenate([one for _, one in everything])
    assert 0 < np.abs(left).max() < 0.5
    np.testing.assert_allclose(results + left[:716], mean, rtol=1e-4, atol=1e-4)
    assert not left[716:].any()
    sent, uncompressed = compression.bytes_per_step()
    assert uncompressed == pytest.approx(2 * (hvd.size() - 1) / hvd.size() * 4 * 716)
    assert sent == pytest.approx(
        2 * (hvd.size() - 1) / hvd.size() * 260 * {1: 3, 2: 4, 3: 3, 4: 4}[hvd.size()]
    )


COMPRESSIONS = {"int8": lambda hvd: hvd.Compression.int8(), "power_sgd": lambda hvd: hvd.PowerSGD(1)}


def values(compression):
    return [np.array(each) for each in compression.variables]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", COMPRESSIONS)
@on_ranks(2)
def test_results_that_are_not_finite(hvd, kind, bad):
    """One rank's number makes the result of all ranks not finite, and leaves the state as it was."""
    shapes = [(20, 30), (7,)]
    for slot in (0, 1):
        compression = COMPRESSIONS[kind](hvd)
        variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
        step = tape_step(hvd, variables, compression=compression)
        step(*constants(gradients_of(hvd.rank(), 0, shapes)))
        before = values(compression)
        given = gradients_of(hvd.rank(), 1, shapes)
        if hvd.rank() == 1:
            given[slot].flat[3] = bad
        found = step(*constants(given))
        assert not np.isfinite(found[slot]).all()
        state = values(compression)
        if kind == "int8":
            assert (state.pop(0), before.pop(0)) == (2, 1)
        for one, expected in zip(state, before, strict=True):
            np.testing.assert_array_equal(one, expected)
        found = step(*constants(gradients_of(hvd.rank(), 2, shapes)))
        assert all(np.isfinite(each).all() for each in found)


@pytest.mark.parametrize("kind", COMPRESSIONS)
@on_ranks(2)
def test_a_sum_that_overflows(hvd, kind):
    """Finite means whose sum is too large for float16."""
    compression = COMPRESSIONS[kind](hvd)
    step = tape_step(hvd, [tf.Variable(tf.zeros([20, 30], tf.float16))], compression=compression, op=hvd.Sum)
    step(tf.random.stateless_normal([20, 30], [hvd.rank(), 1], dtype=tf.float16))
    before = values(compression)
    (found,) = step(tf.fill([20, 30], tf.constant(40000.0, tf.float16)))
    assert np.isinf(found).all()
    for one, expected in list(zip(values(compression), before, strict=True))[kind == "int8" :]:
        np.testing.assert_array_equal(one, expected)


@pytest.mark.parametrize("kind", COMPRESSIONS)
@on_ranks(2, 3)
def test_a_gradient_of_zeros_at_first(hvd, kind):
    """A layer that begins to learn later: its warm start must not stay zero."""
    compression = COMPRESSIONS[kind](hvd)
    for jit in (False, True):
        step = tape_step(hvd, [tf.Variable(tf.zeros([8, 9]))], jit, compression=compression)
        for _ in range(3):
            (found,) = step(tf.zeros([8, 9]))
            assert not found.numpy().any()
        total = np.zeros([8, 9])
        for _ in range(30):
            total += step(tf.fill([8, 9], 1.0 + hvd.rank()))[0].numpy() / 30
        np.testing.assert_allclose(total, np.full([8, 9], (hvd.size() + 1) / 2), rtol=0.05)


@on_ranks(2, 3)
def test_ranks_that_have_joined(hvd):
    """PowerSGD goes on without them, and they come back with another Q; int8 says what it needs."""
    variables = [tf.Variable(tf.zeros([8, 9]))]
    matrix = np.outer(np.arange(1, 9), np.ones(9))
    for average_over in ("size", "active"):
        compression = hvd.PowerSGD(1)
        step = tape_step(hvd, variables, eager=True, compression=compression)
        total = np.zeros([8, 9])
        for number in range(4 if hvd.rank() else 1):
            total += step(tf.constant(matrix, tf.float32))[0].numpy()
            if number:
                share = (hvd.size() - 1) / hvd.size() if average_over == "size" else 1.0
                np.testing.assert_allclose(total, matrix * (1 + number * share), rtol=1e-3)
        hvd.join(average_over=average_over)
        (found,) = step(tf.constant(matrix, tf.float32))
        check_same_bits(hvd, [found, compression.variables[1]])
        np.testing.assert_allclose(found, matrix, rtol=1e-3)
    for eager in (True, False):
        step = tape_step(hvd, variables, eager=eager, compression=hvd.Compression.int8())
        if hvd.rank():
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"some have called hvd\.join"):
                step(tf.constant(matrix, tf.float32))
        hvd.join()


@on_ranks(2, limit=60)
def test_optimizers_that_share_a_compression(hvd):
    """Residuals have the same names on all ranks, also if a rank traces the function of the second optimizer first."""
    import keras

    compression = hvd.Compression.int8()
    steps = []
    for name, rows in (("first", 300), ("second", 900)):
        weight = keras.Variable(np.zeros(rows, np.float32))
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), name=name, compression=compression)
        optimizer.build([weight])
        steps.append(tf.function(functools.partial(optimizer.apply, [tf.ones(rows) / 3], [weight])))
    for step in steps if hvd.rank() == 0 else reversed(steps):
        step.get_concrete_function()
    for step in steps:
        step()
    shapes = {name: value.shape for name, value in residuals.of_the_job(compression).items()}
    assert hvd.allgather_object(shapes) == [shapes] * 2
    assert [shape for name, shape in shapes.items() if ".unsent." in name] == [(2, 256), (4, 256)]


DIFFERENT = """
import os
from mpi4py import MPI

rank = MPI.COMM_WORLD.rank
os.environ["ONEDNN_MAX_CPU_ISA"] = "SSE41" if rank == 0 else "DEFAULT"
import numpy as np
import tensorflow as tf
import tfddl as hvd

hvd.init()
weight = tf.Variable(tf.zeros([777, 333]))
compression = hvd.PowerSGD(rank=4)
def combine(gradient):
    with hvd.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
        loss = tf.reduce_sum(weight * gradient)
    return tape.gradient(loss, weight)

for step in (combine, tf.function(combine)):
    gradient = tf.constant(np.random.default_rng(rank).normal(size=weight.shape).astype("float32"))
    found = hvd.allgather(step(gradient)[tf.newaxis]).numpy()
    assert (found[0] == found[1]).all(), abs(found[0] - found[1]).max()
"""


def test_power_sgd_on_different_processors():
    """TensorFlow's matmuls round by the instruction set, to which oneDNN has a limit here on rank 0."""
    result = run_script(2, DIFFERENT, fresh=True, limit=60)
    assert result.code == 0, result.output
