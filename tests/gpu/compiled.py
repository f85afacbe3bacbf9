"""Every collective and dtype in functions that XLA compiles for GPUs, against NumPy. A script, as collectives.py is:

tfddlrun -np 2 python -m tests.gpu.compiled
"""

import numpy as np
import tensorflow as tf

import tfddl as hvd
from tests.gpu.expected import REDUCED, positive
from tests.gpu.rank import GPU, rank, size
from tests.ops.support import array
from tfddl.ops.devices import runs_on_gpus
from tfddl.ops.dtypes import DTYPES, REDUCTIONS


def jit(function):
    """The function on the GPU, compiled as a whole."""

    @tf.function(jit_compile=True)
    def run(*x):
        with tf.device(GPU):
            return function(*x)

    def call(*x):
        with tf.device(GPU):
            return run(*map(tf.identity, x))

    return call


def reductions():
    """All dtypes of an operation in one program."""
    for op, expected in REDUCED.items():
        dtypes = [dtype for dtype in REDUCTIONS[op] if runs_on_gpus(op, dtype)]
        parts = [positive(size, dtype) for dtype in dtypes]
        results = jit(lambda *x, op=op: [hvd.allreduce(each, op=op) for each in x])(*(p[rank] for p in parts))
        for result, every in zip(results, parts, strict=True):
            near = 8e-3 if op == hvd.Average and result.dtype.size == 2 else 1e-6
            np.testing.assert_allclose(
                result.numpy().astype("float64"), expected(every).astype("float64"), rtol=near
            )


def moves():
    """What only moves data takes every dtype."""
    inputs = [[array(r, dtype, (2 * size, 3)) for r in range(size)] for dtype in DTYPES]
    gathered, sent, turned = jit(
        lambda *x: (
            [hvd.allgather(each) for each in x],
            [hvd.broadcast(each, size - 1) for each in x],
            [hvd.alltoall(each) for each in x],
        )
    )(*(every[rank] for every in inputs))
    for every, all_rows, last, mine in zip(inputs, gathered, sent, turned, strict=True):
        np.testing.assert_array_equal(all_rows.numpy(), np.concatenate(every))
        np.testing.assert_array_equal(last.numpy(), every[-1])
        np.testing.assert_array_equal(
            mine.numpy(), np.concatenate([x[2 * rank : 2 * rank + 2] for x in every])
        )


def computation():
    """Collectives between products whose operands and results only the program's stream knows, many times over."""
    weight = np.eye(512, dtype="float32") * 2

    def step(x, w):
        for number in range(4):
            x = hvd.allreduce(tf.linalg.matmul(x, w), op=hvd.Sum, name=f"chain_{number}")
        return x, hvd.reducescatter(x, op=hvd.Sum), hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum)

    run = jit(step)
    for number in range(20):
        x = np.full((6 * size, 512), 1.0 + number, "float32")
        y, part, (once, twice) = run(x, weight)
        exact = x * (2.0 * size) ** 4
        np.testing.assert_array_equal(y.numpy(), exact)
        np.testing.assert_array_equal(part.numpy(), exact[:6] * size)
        np.testing.assert_array_equal(once.numpy(), exact * size)
        np.testing.assert_array_equal(twice.numpy(), exact * 2 * size)


reductions()
moves()
computation()
print("rank", rank, "checked all")
