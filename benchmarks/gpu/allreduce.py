"""Times an allreduce of a tensor on a GPU inside a graph, beside a direct call of NCCL.

    tfddlrun -np 2 python benchmarks/gpu/allreduce.py [--json FILE]

Columns, one line for each size; `tfddl/bench/rounds.py` defines the medians.

- `bytes`, `count`: size of the float32 tensor that each rank gives.
- `tfddl us`: one call of a tf.function with one `hvd.allreduce(x, op=Sum)`, until its result is there.
- `nothing us`: the same function with `TfddlNoOp`, which returns its input: the cost of TensorFlow.
- `direct us`: `ncclAllReduce` and the wait for its event, on a communicator and a stream of the benchmark.
- `over us` = tfddl - nothing - direct, of the medians. The bar is 15 us; `ok` tells whether the line is below it.
- `p10-p90 us`: spread of tfddl's blocks.
- `algbw GB/s` = bytes / tfddl; `busbw GB/s` = algbw x 2(n-1)/n, as nccl-tests counts them. Ranks that
  share a GPU take turns on it: then both numbers mean nothing.
- `#wrong`: elements that were not the exact sum of whole numbers.
"""

from collections.abc import Callable
from typing import Any

import device
import numpy as np
import report
import tensorflow as tf
from direct import Direct

import tfddl as hvd
from tfddl.bench.adapters import Way
from tfddl.bench.case import Case, count_wrong
from tfddl.bench.rounds import measure
from tfddl.runtime import library

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)
BAR_US = 15.0


def tensorflow_way(op: Callable[[tf.Tensor], tf.Tensor], x: np.ndarray, expected: np.ndarray) -> Way:
    """A tf.function with one op on the GPU, whose call ends when the result is there."""
    with tf.device(device.GPU):
        tensor = tf.identity(x)
    last: list[tf.Tensor] = [tensor]

    @tf.function
    def function(t: tf.Tensor) -> tf.Tensor:
        with tf.device(device.GPU):
            return op(t)

    def call() -> None:
        last[0] = function(tensor)

    return Way(call, lambda: count_wrong(last[0].numpy(), expected))


def row(size: int, rounds: int, direct: Direct) -> dict[str, Any]:
    """Measures one line of the table."""
    count = size // 4
    case = Case("allreduce", hvd.size(), count)
    x, expected = case.values(hvd.rank()), case.expected(hvd.rank())
    memory, result = direct.copy(x), direct.copy(x)
    ways = {
        "tfddl": tensorflow_way(lambda t: hvd.allreduce(t, op=hvd.Sum, name=f"bench.{size}"), x, expected),
        "nothing": tensorflow_way(lambda t: library.ops().tfddl_no_op([t])[0], x, x),
        "direct": Way(
            lambda: direct.allreduce(memory, result, count),
            lambda: count_wrong(direct.read(result, count), expected),
        ),
    }
    timings = measure(ways, rounds=rounds, calls=max(3, min(200, (256 << 20) // size)))
    direct.free(memory, result)
    tfddl, nothing, nccl = timings["tfddl"], timings["nothing"], timings["direct"]
    over = tfddl.median - nothing.median - nccl.median
    bandwidth = size / tfddl.median / 1e3
    return {
        "bytes": size,
        "count": count,
        "tfddl us": tfddl.median,
        "p10-p90 us": f"{tfddl.low:,.0f}-{tfddl.high:,.0f}",
        "nothing us": nothing.median,
        "direct us": nccl.median,
        "over us": over,
        "ok": "yes" if over <= BAR_US else "NO",
        "algbw GB/s": bandwidth,
        "busbw GB/s": bandwidth * 2 * (hvd.size() - 1) / hvd.size(),
        "#wrong": sum(timing.wrong for timing in timings.values()),
    }


def main() -> None:
    """Measures every size."""
    parser = report.parser(__doc__)
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes of the largest tensor")
    arguments = parser.parse_args()
    ordinal = device.start()
    direct = Direct(ordinal)
    rows = [row(size, arguments.rounds, direct) for size in SIZES if size <= arguments.largest]
    direct.close()
    report.show(f"allreduce float32 Sum on GPUs, {hvd.size()} ranks", rows, arguments.json, device.notes())
    report.fail_if_wrong(rows)


if __name__ == "__main__":
    main()
