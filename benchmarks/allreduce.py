"""Time of one allreduce inside a graph, beside raw mpi4py and beside an op that does nothing.

    tfddlrun -np 2 python benchmarks/allreduce.py [--json FILE]

Columns, one line for each size. `measure.py` says how a median comes about.

- `bytes`, `count`: size of the float32 tensor that each rank gives.
- `tfddl us`: one call of a tf.function that holds one `hvd.allreduce(x, op=Sum)`, until its result is there.
- `nothing us`: the same function with `TfddlNothing` in the place of the collective: an AsyncOpKernel of the
  same library that only calls done(). What TensorFlow costs.
- `mpi4py us`: `COMM_WORLD.Allreduce` from one NumPy array into another. What moving the bytes costs.
- `over us` = tfddl - nothing - mpi4py, of the medians: what tfddl adds to both. The bar is 100 us; `ok`
  says whether the line is below it.
- `p10-p90 us`: spread of tfddl's blocks.
- `by MPI us`: the same call in a job that was started anew with TFDDL_TRANSPORT=mpi, right after the line's other
  measurements. `gain` = (by MPI - nothing) / (tfddl - nothing): how often shared memory moves the tensor while
  MPI moves it once, with what TensorFlow costs taken out of both.
- `algbw GB/s` = bytes / tfddl; `busbw GB/s` = algbw x 2(n-1)/n, which is the traffic that each rank of n has
  to send at least, so that it can be compared between numbers of ranks. As nccl-tests counts them.
- `#wrong`: elements of the checked results that were not the exact sum, over all rounds, ranks and ways. The
  inputs are whole numbers, so that there is one right answer.
"""

import os
from collections.abc import Callable
from typing import Any

import measure
import numpy as np
import report
import tensorflow as tf
from mpi4py import MPI

import tfddl as hvd
from tfddl.runtime import library

SIZES = (4, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
BAR_US = 100.0


def values(rank: int, count: int) -> np.ndarray:
    """Whole numbers below 256: sums of up to 65,536 ranks are exact in float32."""
    return ((np.arange(count) + 7 * rank) % 251).astype("float32")


def tensorflow_way(op: Callable[[tf.Tensor], tf.Tensor], x: np.ndarray, expected: np.ndarray) -> measure.Way:
    """A tf.function around one op. On CPU its call returns when the result is there."""
    function = tf.function(op)
    tensor = tf.constant(x)
    last: list[tf.Tensor] = [tensor]

    def call() -> None:
        last[0] = function(tensor)

    return measure.Way(call, lambda: measure.count_wrong(last[0].numpy(), expected))


def mpi_way(x: np.ndarray, expected: np.ndarray) -> measure.Way:
    """MPI by itself, with the buffers of NumPy."""
    result = np.empty_like(x)
    return measure.Way(
        lambda: MPI.COMM_WORLD.Allreduce(x, result), lambda: measure.count_wrong(result, expected)
    )


def ways(size: int) -> dict[str, measure.Way]:
    """All that is compared for a tensor of `size` bytes."""
    count = size // 4
    x = values(hvd.rank(), count)
    expected = sum(values(rank, count) for rank in range(hvd.size()))
    return {
        "tfddl": tensorflow_way(lambda t: hvd.allreduce(t, op=hvd.Sum, name=f"bench.{size}"), x, expected),
        "nothing": tensorflow_way(lambda t: library.ops().tfddl_nothing([t])[0], x, x),
        "mpi4py": mpi_way(x, expected),
    }


def restart(transport: str) -> None:
    """Joins the job anew, over the named transport."""
    hvd.shutdown()
    os.environ["TFDDL_TRANSPORT"] = transport
    hvd.init()


def row(size: int, rounds: int) -> dict[str, Any]:
    """Measures one line of the table."""
    calls = max(3, min(200, (32 << 20) // size))
    timings = measure.measure(ways(size), rounds=rounds, calls=calls)
    restart("mpi")
    timings |= {
        "by MPI": measure.measure({"tfddl": ways(size)["tfddl"]}, rounds=rounds, calls=calls)["tfddl"]
    }
    restart("auto")
    tfddl, nothing, mpi = timings["tfddl"], timings["nothing"], timings["mpi4py"]
    over = tfddl.median - nothing.median - mpi.median
    bandwidth = size / tfddl.median / 1e3
    return {
        "bytes": size,
        "count": size // 4,
        "tfddl us": tfddl.median,
        "p10-p90 us": f"{tfddl.low:,.0f}-{tfddl.high:,.0f}",
        "nothing us": nothing.median,
        "mpi4py us": mpi.median,
        "over us": over,
        "by MPI us": timings["by MPI"].median,
        "gain": (timings["by MPI"].median - nothing.median) / (tfddl.median - nothing.median),
        "ok": "yes" if over <= BAR_US else "NO",
        "algbw GB/s": bandwidth,
        "busbw GB/s": bandwidth * 2 * (hvd.size() - 1) / hvd.size(),
        "#wrong": sum(timing.wrong for timing in timings.values()),
    }


def main() -> None:
    """Measures every size."""
    arguments = report.parser(__doc__, SIZES).parse_args()
    restart("auto")
    rows = [row(size, arguments.rounds) for size in arguments.sizes]
    report.show(f"allreduce float32 Sum, {hvd.size()} ranks", rows, arguments.json)
    report.fail_if_wrong(rows)


if __name__ == "__main__":
    main()
