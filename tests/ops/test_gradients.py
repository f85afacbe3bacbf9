"""Gradients are vector-Jacobian products of the whole job: the loss is the sum of the ranks' losses."""

import subprocess
import sys
from multiprocessing.pool import ThreadPool

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import long, on_ranks, slow
from tests.ops.support import MODES, array, call, check_close, mean, total

SHAPE = (3, 4)


def cotangents(size, shape=SHAPE, dtype="float32"):
    """The cotangent of the op's output on each rank."""
    return [array(rank, dtype, shape, seed=1) for rank in range(size)]


def gradient(mode, function, x, cotangent):
    """The gradient at this rank's input for this rank's cotangent."""

    def body(x, cotangent):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, output_gradients=cotangent)

    return call(mode, body, x, cotangent)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@on_ranks(1, 2, 3)
def test_allreduce(hvd, dtype, mode):
    parts = cotangents(hvd.size(), dtype=dtype)
    x = array(hvd.rank(), dtype, SHAPE)
    for op, expected in ((hvd.Sum, total(parts)), (hvd.Average, mean(parts))):
        result = gradient(mode, lambda x, op=op: hvd.allreduce(x, op=op), x, parts[hvd.rank()])
        check_close(result, expected)


@on_ranks(1, 2, 3)
def test_scale_factors_are_part_of_it(hvd):
    parts = cotangents(hvd.size())

    def scaled(x):
        return hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)

    x = array(hvd.rank(), "float32", SHAPE)
    check_close(gradient("eager", scaled, x, parts[hvd.rank()]), 1.5 * total(parts))


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3)
def test_group(hvd, mode):
    shapes = ((2,), (), (3, 2))
    parts = [cotangents(hvd.size(), shape) for shape in shapes]

    def body(x, seeds):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.grouped_allreduce(x, op=hvd.Sum)
        return tape.gradient(y, x, output_gradients=seeds)

    inputs = [array(hvd.rank(), "float32", shape) for shape in shapes]
    results = call(mode, body, inputs, [part[hvd.rank()] for part in parts])
    for result, part in zip(results, parts, strict=True):
        check_close(result, total(part))


@on_ranks(2)
def test_group_of_which_one_member_is_used(hvd):
    x = [tf.ones([2]), tf.ones([3])]
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.grouped_allreduce(x, op=hvd.Sum)
        loss = tf.reduce_sum(y[1]) * (hvd.rank() + 1)
    used = tape.gradient(loss, x[1])
    check_close(used, np.full(3, 3, "float32"))


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3)
def test_broadcast(hvd, mode):
    parts = cotangents(hvd.size())
    for root in range(hvd.size()):
        x = array(hvd.rank(), "float32", SHAPE)
        result = gradient(mode, lambda x, root=root: hvd.broadcast(x, root), x, parts[hvd.rank()])
        check_close(result, total(parts) if hvd.rank() == root else np.zeros(SHAPE, "float32"))


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3)
def test_allgather(hvd, mode):
    rows = (2, 0, 3)[: hvd.size()]
    parts = cotangents(hvd.size(), (sum(rows), 4))
    x = array(hvd.rank(), "float32", (rows[hvd.rank()], 4))
    start = sum(rows[: hvd.rank()])
    expected = total(parts)[start : start + rows[hvd.rank()]]
    check_close(gradient(mode, hvd.allgather, x, parts[hvd.rank()]), expected)


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3)
def test_second_order(hvd, mode):
    """With y = sum of x: loss_r = w_r y^3 gives g = 3 W y^2, and u_r g gives 6 U W y."""
    weights, seeds = cotangents(hvd.size(), dtype="float64"), cotangents(hvd.size(), dtype="float64")
    seeds = [seed + 1 for seed in seeds]

    def body(x, weight, seed):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(weight * hvd.allreduce(x, op=hvd.Sum) ** 3)
            first = inner.gradient(loss, x)
        return first, outer.gradient(first, x, output_gradients=seed)

    rank = hvd.rank()
    first, second = call(mode, body, array(rank, "float64", SHAPE), weights[rank], seeds[rank])
    y = total([array(other, "float64", SHAPE) for other in range(hvd.size())])
    check_close(first, 3 * total(weights) * y**2)
    check_close(second, 6 * total(seeds) * total(weights) * y)


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3)
def test_rows_without_elements(hvd, mode):
    x = tf.ones([6, 0, 2])
    for function, rows in ((hvd.alltoall, 6), (hvd.reducescatter, 6 // hvd.size())):
        check_close(gradient(mode, function, x, tf.ones([rows, 0, 2])), x.numpy())


@on_ranks(2)
def test_gradients_of_several_ops_do_not_share_names(hvd):
    @tf.function
    def body(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x, op=hvd.Sum) + 2 * hvd.allreduce(x, op=hvd.Sum) + hvd.broadcast(x, 0)
            z = tf.reduce_sum(y)
        return tape.gradient(z, x)

    root = 2 if hvd.rank() == 0 else 0
    check_close(body(tf.ones([3])), np.full(3, 2 + 4 + root, "float32"))


@on_ranks(2, 3)
def test_eager_calls_of_one_name_are_told_apart(hvd):
    """The order in which a tape computes the gradients may differ between ranks: here threads run all at once."""
    factors = (1.0, 10.0, 100.0)
    xs, tapes, losses = [], [], []
    for factor in factors:
        xs.append(tf.Variable(1.0))
        with tf.GradientTape() as tape:
            losses.append(hvd.allreduce(xs[-1], op=hvd.Sum) * factor)
        tapes.append(tape)
    with ThreadPool(len(factors)) as pool:
        order = np.roll(range(len(factors)), hvd.rank())
        results = pool.map(lambda i: tapes[i].gradient(losses[i], xs[i]).numpy(), order)
    np.testing.assert_array_equal(results, [hvd.size() * factors[i] for i in order])


@pytest.mark.parametrize("first", [slow("allgather"), long("alltoall"), long("broadcast"), "reducescatter"])
def test_all_gradients_are_registered_by_whatever_is_used_first(first):
    ops = ("Allgather", "Allreduce", "Alltoall", "Broadcast", "Reducescatter")
    program = f"""
import tensorflow as tf, tfddl
tfddl.{first}
for op in {ops}:
    try:
        tf.RegisterGradient("Tfddl" + op)(None)
    except KeyError:
        continue
    raise SystemExit(op)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
