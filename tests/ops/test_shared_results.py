"""Results in memory that the ranks of a host share: a result that is still held must not be overwritten."""

import functools
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.harness import on_ranks, run_script

COUNT = 30_011  # float32: large enough to be shared, and no multiple of a cache line


def values(rank: int, step: int, count: int = COUNT) -> np.ndarray:
    """The input of a rank in one step."""
    return np.random.default_rng([rank, step]).standard_normal(count).astype("float32")


def in_shared_memory(tensor: tf.Tensor) -> bool:
    """Whether the memory of a tensor is shared between ranks."""
    address = np.asarray(memoryview(tensor)).ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        if begin <= address < end:
            return "/memfd:tfddl-" in line
    return False


def collectives(hvd, step: int) -> list[tuple[tf.Tensor, np.ndarray]]:
    """One collective of each kind: its result and the expected one."""
    ranks = [values(rank, step) for rank in range(hvd.size())]
    x = tf.constant(ranks[hvd.rank()])
    root = step % hvd.size()
    rows = COUNT // hvd.size() * hvd.size()
    part = slice(rows // hvd.size() * hvd.rank(), rows // hvd.size() * (hvd.rank() + 1))
    total = functools.reduce(np.add, ranks)  # in the order of the ranks, as the engine adds
    return [
        (hvd.allreduce(x, op=hvd.Sum, name="sum"), total),
        (hvd.broadcast(x, root, name=f"broadcast.{root}"), ranks[root]),
        (hvd.allgather(x, name="allgather"), np.concatenate(ranks)),
        (hvd.alltoall(x[:rows], name="alltoall"), np.concatenate([rank[part] for rank in ranks])),
    ]


def check(kept: list[tuple[tf.Tensor, np.ndarray]]) -> None:
    """Checks that no result has changed."""
    for tensor, expected in kept:
        np.testing.assert_array_equal(np.asarray(memoryview(tensor)), expected)


@on_ranks(1, 2, 3)
def test_results_stay_what_they_are(hvd):
    kept = []
    for step in range(6):
        results = collectives(hvd, step)
        kept += results if step % 2 == 0 else []  # other memory is used again
    if hvd.size() > 1:
        shared = [in_shared_memory(tensor) for tensor, _ in kept]
        # On the root the result of a broadcast is the input.
        assert shared == [
            kind != 1 or step % hvd.size() != hvd.rank() for step in (0, 2, 4) for kind in range(4)
        ]
    check(kept)
    hvd.shutdown()
    check(kept)
    hvd.init()
    check(collectives(hvd, 7) + kept)


@on_ranks(1, 2, 3)
def test_results_of_results(hvd):
    """The memory of a released result is used for the next result; a variable keeps its result."""
    variable = tf.Variable(tf.zeros([COUNT]))

    @tf.function
    def chain(x):
        once = hvd.allreduce(x, op=hvd.Sum, name="once")
        twice = hvd.allreduce(once * 1.0, op=hvd.Sum, name="twice")
        variable.assign(hvd.broadcast(twice, 0, name="into.variable"))
        return hvd.allreduce(twice, op=hvd.Max, name="thrice"), once

    for step in range(3):
        x = np.arange(COUNT, dtype="float32") % 97 + step
        thrice, once = chain(tf.constant(x))
        np.testing.assert_array_equal(once.numpy(), x * hvd.size())
        np.testing.assert_array_equal(thrice.numpy(), x * hvd.size() ** 2)
        collectives(hvd, step)
        np.testing.assert_array_equal(variable.numpy(), x * hvd.size() ** 2)


@on_ranks(2, 3)
def test_what_is_made_of_a_result_takes_its_memory(hvd):
    """tfddl holds no result once the caller has it."""

    @tf.function
    def halves(x):
        results = [
            hvd.allreduce(x, op=hvd.Sum, name="one"),
            *hvd.grouped_allreduce([x, x], op=hvd.Sum, name="two"),
            hvd.allgather(x, name="rows"),
            hvd.alltoall(tf.tile(x, [hvd.size()]), name="parts"),
        ]
        return [result * 0.5 for result in results]

    x = np.arange(32_000, dtype="float32")  # whole cache lines
    expected = 3 * [x * hvd.size() / 2] + 2 * [np.tile(x / 2, hvd.size())]
    results = halves(tf.constant(x))
    assert [in_shared_memory(result) for result in results] == 5 * [True]
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, right)


@on_ranks(1, 2, 3)
def test_results_of_a_group(hvd):
    """Results stay in the block of their group, unless TensorFlow cannot read them at their offset."""
    shapes = [[4096], [0], [64, 80], [1000], [3001], [1]]  # no member after the fourth begins on a cache line

    @tf.function
    def reduced(*tensors):
        return hvd.grouped_allreduce(list(tensors), op=hvd.Sum, name="group")

    kept = []
    for step in range(4):
        ranks = [
            [
                values(rank, 10 * step + i, np.prod(shape, dtype=int)).reshape(shape)
                for i, shape in enumerate(shapes)
            ]
            for rank in range(hvd.size())
        ]
        expected = [functools.reduce(np.add, tensors) for tensors in zip(*ranks, strict=True)]
        results = list(zip(reduced(*map(tf.constant, ranks[hvd.rank()])), expected, strict=True))
        check(results)
        assert [in_shared_memory(tensor) for tensor, _ in results] == [
            hvd.size() > 1 and i in (0, 2, 3) for i in range(len(shapes))
        ]
        # A held result keeps its block from being used again, and may be written to.
        kept.append(results[step])
        one = tf.raw_ops.AddN(inputs=[results[0][0], results[2][0][0, 0] * tf.ones([4096])])
        np.testing.assert_array_equal(one, expected[0] + expected[2][0, 0])
    check(kept)


@on_ranks(2, 3)
def test_child_reads_a_result(hvd):
    """A forked child has the memory of its rank as well."""
    result = hvd.allreduce(tf.ones([COUNT]), op=hvd.Sum, name="for.child")
    view = np.asarray(memoryview(result))
    child = os.fork()
    if child == 0:
        os._exit(0 if (view == hvd.size()).all() else 1)
    assert os.waitpid(child, 0)[1] == 0


NO_ARENA = """
import resource
import numpy as np
import tensorflow as tf
import tfddl as hvd
from mpi4py import MPI
from tfddl.runtime import library

library.native()  # may compile, and write files
if MPI.COMM_WORLD.rank == 1:  # room for a segment, and for no arena
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, 16 << 20))
hvd.init()
mapped = [line for line in open("/proc/self/maps") if "/memfd:tfddl-" in line]
assert len(mapped) == hvd.size(), mapped
x = np.arange(100_003, dtype="float32")
assert (hvd.allreduce(tf.constant(x), op=hvd.Sum).numpy() == x * hvd.size()).all()
assert (hvd.broadcast(tf.constant(x + hvd.rank()), 1).numpy() == x + 1).all()
assert (hvd.allgather(tf.constant(x)).numpy() == np.concatenate([x] * hvd.size())).all()
print("right")
"""


def test_one_rank_without_an_arena():
    result = run_script(3, NO_ARENA)
    assert result.code == 0, result.output
    assert result.output.count("right") == 3
    assert "use MPI" not in result.output
