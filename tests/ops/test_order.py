"""Ranks submit in different orders; agreement by name brings them together."""

import functools
import random
import time

import numpy as np
import tensorflow as tf

from tests.harness import on_ranks
from tests.harness.flight import operations
from tests.ops.support import array, at_once, check, total

COUNT = 12


def permutation(rank, seed=0):
    """An order for each rank: the order of rank 1 is that of rank 0 reversed."""
    order = list(range(COUNT))
    random.Random(seed + rank // 2).shuffle(order)
    return order[::-1] if rank % 2 else order


def expected(size, index):
    return total([array(rank, "float32", (index + 1,), index) for rank in range(size)])


@on_ranks(2, 3)
def test_order_of_control_dependencies(hvd):
    """An input is computed once the collective before it has been submitted; a collective starts once its input exists."""
    order = permutation(hvd.rank())

    @tf.function
    def step(inputs):
        results, previous, name = {}, [], None
        for index in order:
            with tf.control_dependencies(previous):
                late = tf.numpy_function(functools.partial(_after, name), [inputs[index]], tf.float32)
            late.set_shape([index + 1])
            previous, name = [late.op], f"ordered.{index}"
            results[index] = hvd.allreduce(late, op=hvd.Sum, name=f"ordered.{index}")
        return [results[index] for index in range(COUNT)]

    inputs = [tf.constant(array(hvd.rank(), "float32", (i + 1,), i)) for i in range(COUNT)]
    for index, result in enumerate(step(inputs)):
        check(result, expected(hvd.size(), index))
    assert _submitted() == [f"ordered.{index}" for index in order]


def _submitted():
    return [each.name for each in operations() if each.name.startswith("ordered.")]


def _after(name, x):
    deadline = time.monotonic() + 60
    while name and name not in _submitted() and time.monotonic() < deadline:
        time.sleep(0.002)
    return x


@on_ranks(2, 3, full=(4,))
def test_threads_in_eager_mode(hvd):
    def work(thread):
        for step in range(10):
            time.sleep(random.Random(hvd.rank() * 1000 + thread * 10 + step).uniform(0, 0.003))
            x = array(hvd.rank(), "float32", (thread + 1,), thread)
            result = hvd.allreduce(x, op=hvd.Sum, name=f"thread.{thread}")
            check(result, expected(hvd.size(), thread))

    at_once(*(functools.partial(work, thread) for thread in permutation(hvd.rank())))


@on_ranks(2, 3)
def test_kinds_mixed(hvd):
    """Independent ops of every kind in one function: TensorFlow chooses the order on each rank."""
    rank, size = hvd.rank(), hvd.size()

    @tf.function
    def step(x):
        sums = [hvd.allreduce(x + i, op=hvd.Sum) for i in range(5)]
        roots = [hvd.broadcast(x + i, i % size) for i in range(5)]
        rows = [hvd.allgather(x[: rank + 1] + i) for i in range(5)]
        wide = tf.cast(x, tf.float64)
        groups = [hvd.grouped_allreduce([x + i, wide], op=hvd.Sum) for i in range(5)]
        return sums, roots, rows, groups

    parts = [array(other, "float32", (6,)) for other in range(size)]
    for _ in range(20):
        sums, roots, rows, groups = step(tf.constant(parts[rank]))
        for i in range(5):
            moved = total([part + np.float32(i) for part in parts])
            check(sums[i], moved)
            check(groups[i][0], moved)
            check(groups[i][1], total([part.astype("float64") for part in parts]))
            check(roots[i], parts[i % size] + np.float32(i))
            check(rows[i], np.concatenate([part[: other + 1] + i for other, part in enumerate(parts)]))


@on_ranks(2)
def test_a_trace_on_one_rank_only(hvd):
    """Names come from the graph, not from a counter of traces."""

    @tf.function
    def reduce(x):
        return hvd.allreduce(x, op=hvd.Sum) + hvd.allreduce(2 * x, op=hvd.Sum)

    if hvd.rank() == 0:
        reduce.get_concrete_function(tf.TensorSpec([7]))
    check(reduce(tf.ones([3])), np.full(3, 6, "float32"))


@on_ranks(2)
def test_one_name_twice_in_a_function(hvd):
    @tf.function
    def reduce(x):
        return hvd.allreduce(x, op=hvd.Sum, name="twice"), hvd.allreduce(x + 1, op=hvd.Sum, name="twice")

    first, second = reduce(tf.ones([3]))
    check(first, np.full(3, 2, "float32"))
    check(second, np.full(3, 4, "float32"))


def late_on(hvd, rank, x):
    """Gives `x` some time later on that rank, at once on the others."""
    wait = tf.numpy_function(lambda: time.sleep(0.2 * (rank == hvd.rank())), [], [], stateful=False)
    with tf.control_dependencies([wait]):
        return tf.identity(x)


def late_gradient_on(hvd, rank, x):
    """Gives `x`, and its gradient some time later on that rank."""

    @tf.custom_gradient
    def identity(x):
        return tf.identity(x), lambda upstream: late_on(hvd, rank, upstream)

    return identity(x)


@on_ranks(2)
def test_calls_of_one_function(hvd):
    """The calls share names. Rank 0 has the inputs of the first call last, rank 1 those of the second call."""
    variable = tf.Variable(1.0)

    @tf.function
    def mean(x):
        return hvd.allreduce(variable * x)

    @tf.function
    def gradient(x):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = variable * x
        return tape.gradient(loss, variable)

    late = functools.partial(late_on, hvd)

    @tf.function
    def in_branches(x, y):
        first = tf.cond(x > 0, lambda: mean(late(0, x)), lambda: x)
        return first, tf.cond(y > 0, lambda: mean(late(1, y)), lambda: y)

    @tf.function
    def calls(x, y):
        return mean(late(0, x)), mean(late(1, y))

    @tf.function
    def gradients(x, y):
        return gradient(late(0, x)), gradient(late(1, y))

    for function in (calls, in_branches, gradients):
        found = [float(each) for each in function(tf.constant(1.0), tf.constant(100.0))]
        assert found == [1, 100], function.__name__


@on_ranks(2)
def test_gradients_of_calls_of_one_function(hvd):
    """The tape is outside of the functions. Rank 0 has the gradient of the first call last, rank 1 that of the second."""

    @tf.function
    def total(x):
        return hvd.allreduce(x, op=hvd.Sum)

    late = functools.partial(late_gradient_on, hvd)

    @tf.function
    def both(x):
        return late(0, total(x)) + 100 * late(1, total(10 * x))

    @tf.function
    def in_branch(x):
        return tf.cond(x > 0, lambda: both(x), lambda: x)

    @tf.function
    def in_loop(x):
        for _ in tf.range(1):
            x = both(x)
        return x

    for function in (both, in_branch, in_loop):
        x = tf.constant(1.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        assert float(tape.gradient(y, x)) == 2002, function


@on_ranks(1)
def test_calls_around_a_part_that_xla_compiles(hvd):
    """The function has no automatic control dependencies."""

    @tf.function
    def total(x):
        return hvd.allreduce(x, op=hvd.Sum)

    def calls():
        total(1.0)
        tf.xla.experimental.compile(lambda: total(2.0))
        total(3.0)

    graph = tf.compat.v1.wrap_function(calls, []).graph
    first, _, last = [op for op in graph.get_operations() if op.type.endswith("PartitionedCall")]
    assert last.control_inputs == [first]


@on_ranks(2)
def test_gradients_for_several_tapes(hvd):
    """Their functions have no automatic control dependencies. Rank 0 has the first of two calls last, rank 1 the second."""
    late, late_gradient = functools.partial(late_on, hvd), functools.partial(late_gradient_on, hvd)

    @tf.function
    def total(x):
        return hvd.allreduce(x, op=hvd.Sum)

    def both(x):
        return total(late(0, x)) + 100 * total(late(1, 10 * x))

    @tf.custom_gradient
    def branch_in_gradient(x):
        return tf.identity(x), lambda upstream: tf.cond(x > 0, lambda: both(upstream), lambda: upstream)

    def two_tapes(x):
        with tf.GradientTape() as first, tf.GradientTape() as second:
            first.watch(x)
            second.watch(x)
            y = total(x)
            a, b = late_gradient(0, y), 100 * late_gradient(1, y)
        return first.gradient(a, x), second.gradient(b, x)

    def persistent(x, body):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = body(x)
            a, b = late_gradient(0, y), 100 * late_gradient(1, y)
        return tape.gradient(a, x), tape.gradient(b, x)

    def second_order(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = late_gradient(0, x * total(x)) + 100 * late_gradient(1, x * total(10 * x))
            slope = inner.gradient(y, x)
        return slope, outer.gradient(slope, x)

    def check_gradients(of, expected):
        assert [float(each) for each in tf.function(of)(tf.constant(1.0))] == expected, of

    check_gradients(two_tapes, [2, 200])
    check_gradients(lambda x: persistent(x, lambda x: tf.cond(x > 0, lambda: total(x), lambda: x)), [2, 200])
    loop = (lambda i, _: i < 2), (lambda i, x: (i + 1, total(x)))
    check_gradients(lambda x: persistent(x, lambda x: tf.while_loop(*loop, (0, x))[1]), [4, 400])
    check_gradients(lambda x: persistent(x, tf.function(branch_in_gradient)), [2002, 200200])
    check_gradients(second_order, [4004, 4004])


@on_ranks(2)
def test_inside_control_flow(hvd):
    @tf.function
    def loop(x):
        for _ in tf.range(5):
            x = hvd.allreduce(x, op=hvd.Average) + 1
        return tf.cond(tf.reduce_sum(x) > 0, lambda: hvd.allreduce(x, op=hvd.Sum), lambda: x)

    check(loop(tf.fill([3], float(hvd.rank()))), np.full(3, 11, "float32"))


@on_ranks(2)
def test_independent_ops_are_not_chained(hvd):
    """Rank 0 builds `a` first, rank 1 builds `b` first: ops in the order of building would deadlock."""

    @tf.function
    def step(a, b):
        return hvd.allreduce(a, op=hvd.Sum, name="chain.a"), hvd.allreduce(b, op=hvd.Sum, name="chain.b")

    @tf.function
    def reversed_step(a, b):
        second = hvd.allreduce(b, op=hvd.Sum, name="chain.b")
        return hvd.allreduce(a, op=hvd.Sum, name="chain.a"), second

    first, second = (step if hvd.rank() == 0 else reversed_step)(tf.ones([2]), tf.ones([3]))
    check(first, np.full(2, 2, "float32"))
    check(second, np.full(3, 2, "float32"))


@on_ranks(2, 3)
def test_one_name_in_both_branches_of_a_cond(hvd):
    """The branches exclude each other: ranks may take different ones."""

    @tf.function
    def step(x, has_data):
        if has_data:
            first, second = hvd.allreduce(x, op=hvd.Sum, name="A"), hvd.allreduce(2 * x, op=hvd.Sum)
        else:
            first = hvd.allreduce(tf.zeros_like(x), op=hvd.Sum, name="A")
            second = hvd.allreduce(tf.zeros_like(x), op=hvd.Sum)
        return first, second, hvd.allreduce(x, op=hvd.Sum, name="A")

    first, second, after = step(tf.ones([2]), tf.constant(hvd.rank() == 0))
    check(first, np.full(2, 1, "float32"))
    check(second, np.full(2, 2, "float32"))
    check(after, np.full(2, hvd.size(), "float32"))


@on_ranks(2, 3)
def test_one_name_in_the_branches_of_a_switch(hvd):
    """Each rank takes another branch, and one branch uses the name less often."""

    def branch(factor, calls):
        def body(x):
            for _ in range(calls):
                x = hvd.allreduce(factor * x, op=hvd.Sum, name="S")
            return hvd.allreduce(x, op=hvd.Sum)

        return body

    @tf.function
    def step(x, index):
        x = hvd.allreduce(x, op=hvd.Sum, name="S")
        branches = [lambda: branch(1.0, 2)(x), lambda: branch(3.0, 2)(x)]
        first = tf.switch_case(index, branches, default=lambda: branch(2.0, 2)(x))
        unused = tf.switch_case(tf.constant(1), [lambda: branch(1.0, 3)(x), lambda: x])
        return first, unused, hvd.allreduce(x, op=hvd.Sum, name="S")

    size = hvd.size()
    first, unused, after = step(tf.ones([2]), tf.constant(hvd.rank()))
    factors = [1.0, 3.0, 2.0][:size]
    # The first reduction in the branch sums factor * size, the second factor * that.
    expected = size * (sum(factors) * size) * sum(factors)
    check(first, np.full(2, expected, "float32"))
    check(unused, np.full(2, size, "float32"))
    check(after, np.full(2, size**2, "float32"))


@on_ranks(1, 2, 3)
def test_names_in_gradients_of_branches_and_loops(hvd):
    """They do not depend on the number of graphs that a rank has traced."""
    if hvd.rank() == 0:
        tf.function(lambda x: tf.cond(x > 0, lambda: x, lambda: -x))(tf.constant(1.0))

    @tf.custom_gradient
    def together(x):
        return tf.identity(x), lambda upstream: hvd.allreduce(upstream, op=hvd.Sum)

    @tf.function
    def gradients(x):
        found = []
        for _ in range(2):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.cond(x > 0, lambda: together(together(x)), lambda: together(2 * x))
            found.append(tape.gradient(y, x))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(2):
                y = together(y)
                y = tf.cond(x > 0, lambda y=y: together(y), lambda y=y: y)
        return *found, tape.gradient(y, x)

    size = hvd.size()
    assert [float(each) for each in gradients(tf.constant(1.0))] == [size**2, size**2, size**4]
    assert [float(each) for each in gradients(tf.constant(-1.0))] == [2 * size, 2 * size, size**2]


@on_ranks(2, 3)
def test_two_gradients_of_a_cond(hvd):
    """The ranks take different branches, whose gradients need values of the forward pass."""

    @tf.custom_gradient
    def together(x):
        return tf.identity(x), lambda upstream: hvd.allreduce(upstream, op=hvd.Sum)

    @tf.function
    def gradients(x):
        y = tf.cond(x > 0, lambda: together(x * x), lambda: together(x * x * x))
        return [*tf.gradients(y, x), *tf.gradients(3.0 * y, x)]

    x = 1.0 if hvd.rank() == 0 else -2.0
    slope = 2 * x if x > 0 else 3 * x * x
    found = [float(each) for each in gradients(tf.constant(x))]
    assert found == [hvd.size() * slope, 3 * hvd.size() * slope]


@on_ranks(2, 3)
def test_a_name_like_that_of_a_second_use(hvd):
    """The second 'a' would be 'a.1'. The ranks begin in different orders."""

    def later(x, turn):
        late = tf.numpy_function(lambda: time.sleep(0.2 * (turn == hvd.rank())), [], [])
        with tf.control_dependencies([late]):
            return tf.identity(x)

    @tf.function
    def sums(x):
        return [
            hvd.allreduce(later(x + i, i), name=name, op=hvd.Sum)
            for i, name in enumerate(("loss", "loss.1", "loss", "a", "a", "a.1"))
        ]

    found = [float(each) for each in sums(tf.constant(1.0))]
    assert found == [hvd.size() * (1.0 + i) for i in range(6)]
