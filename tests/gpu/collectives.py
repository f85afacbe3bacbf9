"""Every collective on tensors of GPUs against NumPy. A script for ranks that have one each, or the double's:

tfddlrun -np 2 python -m tests.gpu.collectives
"""

import itertools
import random

import numpy as np
import tensorflow as tf

import tfddl as hvd
from tests.gpu.expected import REDUCED, positive
from tests.gpu.rank import CPU, GPU, calling, lies_on, rank, size
from tests.ops.support import array, arrays, numpy_type, total
from tfddl.ops.devices import runs_on_gpus
from tfddl.ops.dtypes import DTYPES, REDUCTIONS

FLOAT = "float32"


def same(result, expected, device=GPU):
    """Whether a tensor has these values and lies where it should."""
    np.testing.assert_array_equal(result.numpy(), expected)
    assert lies_on(result, device), (result.device, device)


def on_gpu(value):
    with tf.device(GPU):
        tensor = tf.identity(value)
    assert lies_on(tensor, GPU)
    return tensor


def reductions():
    """By operation and dtype, each where the table says, and there through NCCL."""
    for op, expected in REDUCED.items():
        for dtype in REDUCTIONS[op]:
            parts = positive(size, dtype)
            x, through_nccl = on_gpu(parts[rank]), runs_on_gpus(op, dtype)
            with tf.device(GPU), calling(int(through_nccl), "ncclAllReduce"):
                y = hvd.allreduce(x, op=op)
            exact = expected(parts)
            if op == hvd.Average:  # times a third is not divided by three
                near = {"rtol": 8e-3 if numpy_type(dtype).itemsize == 2 else 1e-6}
                np.testing.assert_allclose(y.numpy().astype("complex128"), exact.astype("complex128"), **near)
                assert lies_on(y, GPU if through_nccl else CPU)
            else:
                same(y, exact, GPU if through_nccl else CPU)
    x = on_gpu(array(rank, FLOAT))
    for op, factors in ((hvd.Sum, (0.5, 4.0)), (hvd.Average, (2.0, 1.0)), (hvd.Max, (2.0, 1.0))):
        y = hvd.allreduce(x, op=op, prescale_factor=factors[0], postscale_factor=factors[1])
        exact = REDUCED[op](arrays(size, FLOAT)) * np.float32(factors[0] * factors[1])
        np.testing.assert_allclose(y.numpy(), exact, rtol=1e-6)
    with tf.device(CPU):
        adasum = hvd.allreduce(tf.identity(x), op=hvd.Adasum)
    same(hvd.allreduce(x, op=hvd.Adasum), adasum.numpy(), CPU)


def groups():
    """In one graph, of mixed sizes and types, without elements too."""

    @tf.function
    def run(*x):
        return hvd.grouped_allreduce(list(x), op=hvd.Sum), hvd.grouped_allgather(list(x))

    inputs = [
        [array(r, FLOAT, shape, i) for i, shape in enumerate([(3,), (2, 2), (0, 4), (70001,)])]
        for r in range(size)
    ]
    with tf.device(GPU):
        sums, gathered = run(*map(on_gpu, inputs[rank]))
        parts = hvd.grouped_reducescatter([on_gpu(x) for x in inputs[rank]], op=hvd.Sum)
    for i, (y, z, part) in enumerate(zip(sums, gathered, parts, strict=True)):
        column = [x[i] for x in inputs]
        np.testing.assert_array_equal(y.numpy(), total(column))
        np.testing.assert_array_equal(z.numpy(), np.concatenate(column))
        np.testing.assert_array_equal(part.numpy(), np.array_split(total(column), size)[rank])


def rows():
    """What only moves data takes every dtype; ranks bring different numbers of rows, and some none."""
    for dtype in DTYPES:
        x = [array(r, dtype, (2 * r, 3)) for r in range(size)]
        same(hvd.allgather(on_gpu(x[rank])), np.concatenate(x))
        for root in range(size):
            same(hvd.broadcast(on_gpu(array(rank, dtype)), root), array(root, dtype))
    for kind in ("int32", "int64"):
        splits = [[(r + other) % 3 for other in range(size)] for r in range(size)]
        x = [np.arange(sum(splits[r]) * 2, dtype=FLOAT).reshape(-1, 2) + 100 * r for r in range(size)]
        y, received = hvd.alltoall(on_gpu(x[rank]), splits=tf.constant(splits[rank], kind))
        mine = [np.split(x[r], np.cumsum(splits[r])[:-1])[rank] for r in range(size)]
        same(y, np.concatenate(mine))
        assert received.numpy().tolist() == [splits[r][rank] for r in range(size)]
        assert received.dtype == kind
    same(hvd.alltoall(on_gpu(np.arange(2 * size, dtype=FLOAT))), np.tile([2 * rank, 2 * rank + 1], size))
    with calling(1 if 5 % size == 0 else size, "ncclReduce", "ncclReduceScatter"):
        y = hvd.reducescatter(on_gpu(array(rank, FLOAT, (5, 2))), op=hvd.Sum)
    same(y, np.array_split(total(arrays(size, FLOAT, (5, 2))), size)[rank])


def gradients():
    """Of a step with several buckets, which are a sequence on the CPU and stand alone here."""
    weights = [tf.Variable(array(0, FLOAT, (n,), seed=n)) for n in (40000, 3, 70000)]

    @tf.function
    def step(x):
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
            loss = tf.add_n([tf.reduce_sum(w * x) for w in weights])
        with tf.device(GPU):
            return tape.gradient(loss, weights)

    for number in range(1, 4):
        with calling(len(weights), "ncclAllReduce"):
            sums = step(tf.constant(float(number * (rank + 1))))
        for gradient, weight in zip(sums, weights, strict=True):
            np.testing.assert_array_equal(
                gradient.numpy(), np.full(weight.shape, number * size * (size + 1) / 2)
            )


def without_data():
    """What the vote alone makes up, placed on a GPU."""
    with tf.device(GPU):
        hvd.barrier()
        assert hvd.rank_op().numpy() == rank and hvd.size_op().numpy() == size
        weight = tf.Variable(on_gpu(array(rank, FLOAT)))
        hvd.broadcast_variables([weight], root_rank=size - 1)
        np.testing.assert_array_equal(weight.numpy(), array(size - 1, FLOAT))
        with calling(0, "ncclBroadcast", "ncclAllGather"):
            assert hvd.broadcast_object({"rank": rank}, 0) == {"rank": 0}
            assert hvd.allgather_object(rank) == list(range(size))
        if rank < 2 <= size:
            same(hvd.allreduce(on_gpu(np.ones(3, FLOAT)), op=hvd.Sum, name="uneven"), np.full(3, 2))
        hvd.join()


def sets_that_overlap():
    """All at once in one function, which makes each rank's calls in another order."""
    parts = [part for count in range(1, size) for part in itertools.combinations(range(size), count)]
    parts = parts[:14]  # all of four ranks; each takes a communicator
    sets = [hvd.global_process_set, *(hvd.add_process_set(part) for part in parts)]
    calls = [(s, n) for s in sets if s.included() for n in range(3)]
    random.Random(rank).shuffle(calls)

    @tf.function
    def step(x):
        return [hvd.allreduce(x + n, op=hvd.Sum, process_set=s, name=f"overlap_{n}") for s, n in calls]

    for _ in range(5):
        with calling(len(calls), "ncclAllReduce"):
            sums = step(on_gpu(array(rank, FLOAT)))
        for x, (process_set, n) in zip(sums, calls, strict=True):
            every = [array(member, FLOAT) + np.float32(n) for member in process_set.ranks or range(size)]
            same(x, np.sum(every, axis=0))
    for process_set in sets[1:]:
        hvd.remove_process_set(process_set)


reductions()
groups()
rows()
gradients()
sets_that_overlap()
without_data()
print("rank", rank, "checked all")
