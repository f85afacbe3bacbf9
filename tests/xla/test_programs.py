"""Programs: loops, conds, nesting, recompilation, many collectives, several programs, auto-clustering."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, run_script
from tests.ops.support import at_once
from tests.xla.support import counts, jit, recorded


@on_ranks(1, 2, 3)
def test_a_loop_runs_it_as_often_as_it_should(hvd):
    @jit
    def run(x, times):
        def body(i, x):
            return i + 1, hvd.allreduce(x, op=hvd.Sum, name="in.loop", ignore_name_scope=True) / tf.cast(
                hvd.size(), x.dtype
            ) + 1

        return tf.while_loop(lambda i, _: i < times, body, [0, x])[1]

    for times in (0, 1, 5):
        with recorded() as names:
            assert float(run(tf.constant(1.0), times)) == 1.0 + times
        assert counts(names)["in.loop"] == times


@on_ranks(1, 2, 3)
def test_a_cond_runs_one_branch(hvd):
    @jit
    def run(x, first):
        def sum_of(x, name):
            return hvd.allreduce(x, op=hvd.Sum, name=name, ignore_name_scope=True)

        return tf.cond(first, lambda: sum_of(x, "one"), lambda: sum_of(sum_of(x, "two"), "three"))

    with recorded() as names:
        for first, factor in ((True, 1), (False, hvd.size())):
            total = factor * sum(range(1, hvd.size() + 1))
            assert float(run(tf.constant(hvd.rank() + 1.0), tf.constant(first))) == total
    assert names == ["one", "two", "three"]


@on_ranks(1, 2, 3)
def test_a_cond_in_a_loop(hvd):
    """One collective in every third turn, as in gradient accumulation, and one in each turn."""

    @jit
    def run(x):
        def body(i, x):
            mean = lambda: hvd.allreduce(x, name="every.third", ignore_name_scope=True)  # noqa: E731
            y = tf.cond(i % 3 == 2, mean, lambda: x)
            return i + 1, hvd.allreduce(y, op=hvd.Max, name="each", ignore_name_scope=True)

        return tf.while_loop(lambda i, _: i < 9, body, [0, x])[1]

    with recorded() as names:
        assert float(run(tf.constant(float(hvd.rank())))) == hvd.size() - 1
    assert counts(names) == {"every.third": 3, "each": 9}


@on_ranks(1, 2, 3)
def test_none_is_removed_or_merged(hvd):
    @jit
    def run(x):
        hvd.allreduce(x, name="unused")
        return hvd.allreduce(x, name="same") + hvd.allreduce(x, name="same")

    with recorded() as names:
        run(tf.constant(1.0))
        run(tf.constant(1.0))
    assert counts(names) == {"unused": 2, "same": 2, "same.1": 2}


@on_ranks(1, 2, 3)
def test_ranks_that_compute_something_else_in_between(hvd):
    """All ranks run the collectives in one order, though each rank computes other things around them."""
    size = 1 << 12

    @jit
    def run(x):
        parts = [x + float(i) for i in range(12)]
        for i in range(12):
            if i % hvd.size() == hvd.rank():
                parts[i] = (
                    tf.reduce_sum(tf.sin(tf.matmul(parts[i][:64, None], parts[i][None, :64]))) * 0 + parts[i]
                )
        return tf.add_n([hvd.allreduce(part, name=f"part.{i}") for i, part in enumerate(parts)][::-1])

    with recorded() as names:
        for _ in range(3):
            np.testing.assert_allclose(run(tf.ones([size])), np.full([size], 12.0 + 66))
    assert sorted(names) == sorted([f"part.{i}" for i in range(12)] * 3)


@on_ranks(2, 3)
def test_different_programs_one_after_the_other(hvd):
    """The ranks have compiled different numbers of programs, and share the names of the last one."""
    for extra in range(hvd.rank()):
        jit(lambda x, extra=extra: x * 2.0 + extra)(tf.ones([3]))
    first = jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    second = jit(lambda x: hvd.allgather(x[None]) * 2)
    for _ in range(2):
        assert float(first(tf.constant(1.0))) == hvd.size()
        assert second(tf.constant(1.0)).numpy().tolist() == [2.0] * hvd.size()


@on_ranks(1, 2, 3)
def test_nested_either_way(hvd):
    plain = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="plain"))
    compiled = jit(lambda x: hvd.allreduce(x, op=hvd.Sum, name="compiled"))
    size = hvd.size()
    for _ in range(2):  # the second time what was traced alone is traced once more
        assert float(jit(lambda x: plain(x) + 1)(tf.constant(1.0))) == size + 1
        assert float(tf.function(lambda x: compiled(x) + 1)(tf.constant(1.0))) == size + 1
        assert float(jit(lambda x: compiled(x) + 1)(tf.constant(1.0))) == size + 1
        assert float(plain(tf.constant(1.0))) == float(compiled(tf.constant(1.0))) == size


@on_ranks(1, 2, 3)
def test_dynamic_shapes_compile_again(hvd):
    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None, 2])])
    def run(x):
        return hvd.allreduce(x * 2, op=hvd.Sum), hvd.allgather(x)

    for rows in (3, 4, 3, 1):
        doubled, gathered = run(tf.ones([rows, 2]))
        np.testing.assert_array_equal(doubled, np.full([rows, 2], 2.0 * hvd.size()))
        assert gathered.shape == (rows * hvd.size(), 2)


@on_ranks(2, 3)
def test_two_programs_at_once(hvd):
    programs = [jit(lambda x, i=i: hvd.allreduce(x, op=hvd.Sum, name=f"program.{i}")) for i in range(2)]
    for program in programs:
        program(tf.constant(0.0))
    sums: list[float] = []

    def run(program):
        sums.extend(float(program(tf.constant(1.0))) for _ in range(20))

    # Each rank starts the programs in an order of its own.
    order = programs if hvd.rank() % 2 else programs[::-1]
    at_once(*(partial(run, program) for program in order))
    assert sums == [hvd.size()] * 40


AUTO = """
import importlib

import tensorflow as tf

import tfddl as hvd
from tfddl import _compat

support = importlib.import_module("tests.keras2.support" if _compat.is_keras_2() else "tests.keras.support")
hvd.init()
network = support.model()
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01, momentum=0.9))
arrays = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
support.fit(network, optimizer, arrays, support.BATCH, epochs=3)
support.check_equal_on_all_ranks(hvd, network.variables)

@tf.function
def run(x):
    for _ in range(4):
        x = hvd.allreduce(tf.sin(x) * 2 + x, name="again")
    return x

for _ in range(3):
    run(tf.ones([100]))
print("trained", hvd.rank(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [2])
def test_auto_clustering(size):
    flags = {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"}
    result = run_script(size, AUTO, environment=flags)
    assert result.code == 0, result.output
    assert result.output.count("trained") == size
