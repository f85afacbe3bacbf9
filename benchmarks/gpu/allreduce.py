"""Times an allreduce of a tensor on a GPU inside a graph, beside a direct call of NCCL.

    tfddlrun -np 2 python benchmarks/gpu/allreduce.py [--ways graph] [--json FILE]

An op's time is the difference between a tf.function with 21 `hvd.allreduce(x, op=Sum)`, one after the other, and one with a
single allreduce, divided by 20: the call of the function does not count. Columns, one line for each size and way;
`tfddl/bench/rounds.py` defines the medians.

- `bytes`: size of the float32 tensor that each rank gives. `way`: `graph`, or `compiled` with jit_compile=True.
- `one us`: a call of the function with a single allreduce, until its result is there.
- `op us`: the time of an op.
- `direct us`: `ncclAllReduce` and the wait for its event, on a communicator and a stream of the benchmark.
- `behind us`: the same, behind an event of another stream. An op waits for TensorFlow's stream in this way.
- `over us` = op - direct. The bar is 15 us; `ok` tells whether the line is below it.
- `algbw GB/s` = bytes / op; `busbw GB/s` = algbw x 2(n-1)/n, as nccl-tests counts them. Ranks that
  share a GPU take turns on it: then both numbers mean nothing.
- `#wrong`: elements that were not the exact sum of whole numbers.
"""

from collections.abc import Iterator
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

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)
BAR_US = 15.0
MANY = 21
WAYS = {"graph": False, "compiled": True}
"""Whether XLA compiles the function."""


def chain(length: int, x: np.ndarray, expected: np.ndarray, compiled: bool) -> Way:
    """A tf.function with so many allreduces on the GPU, whose call ends when the last result is there."""
    with tf.device(device.GPU):
        tensor = tf.identity(x)
    last: list[tf.Tensor] = [tensor]

    @tf.function(jit_compile=compiled)
    def function(t: tf.Tensor) -> tf.Tensor:
        results: list[tf.Tensor] = []
        with tf.device(device.GPU):
            for number in range(length):
                with tf.control_dependencies(results[-1:]):
                    name = f"bench.{x.nbytes}.{length}.{number}.{compiled}"
                    results.append(hvd.allreduce(t, op=hvd.Sum, name=name))
            return results[-1]

    def call() -> None:
        last[0] = function(tensor)
        np.asarray(last[0][:1])

    return Way(call, lambda: count_wrong(last[0].numpy(), expected))


def rows(size: int, chosen: list[str], rounds: int, direct: Direct) -> Iterator[dict[str, Any]]:
    """Measures the lines of a size."""
    count = size // 4
    case = Case("allreduce", hvd.size(), count)
    x, expected = case.values(hvd.rank()), case.expected(hvd.rank())
    memory, result = direct.copy(x), direct.copy(x)
    ways = {
        "direct": Way(
            lambda: direct.allreduce(memory, result, count),
            lambda: count_wrong(direct.read(result, count), expected),
        ),
        "behind": Way(
            lambda: direct.allreduce_behind(memory, result, count),
            lambda: count_wrong(direct.read(result, count), expected),
        ),
    }
    for way in chosen:
        for length in (1, MANY):
            ways[f"{way} {length}"] = chain(length, x, expected, WAYS[way])
    timings = measure(ways, rounds=rounds, calls=max(3, min(50, (256 << 20) // size)))
    direct.free(memory, result)
    nccl = timings["direct"].median
    for way in chosen:
        one, many = timings[f"{way} 1"], timings[f"{way} {MANY}"]
        op = (many.median - one.median) / (MANY - 1)
        yield {
            "bytes": size,
            "way": way,
            "one us": one.median,
            "op us": op,
            "direct us": nccl,
            "behind us": timings["behind"].median,
            "over us": op - nccl,
            "ok": "yes" if op - nccl <= BAR_US else "NO",
            "algbw GB/s": size / op / 1e3,
            "busbw GB/s": size / op / 1e3 * 2 * (hvd.size() - 1) / hvd.size(),
            "#wrong": one.wrong + many.wrong + timings["direct"].wrong + timings["behind"].wrong,
        }


def main() -> None:
    """Measures every size."""
    parser = report.parser(__doc__)
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes of the largest tensor")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="with XLA or without it")
    arguments = parser.parse_args()
    ordinal = device.start()
    direct = Direct(ordinal)
    lines = [
        line
        for size in SIZES
        if size <= arguments.largest
        for line in rows(size, arguments.ways, arguments.rounds, direct)
    ]
    direct.close()
    report.show(f"allreduce float32 Sum on GPUs, {hvd.size()} ranks", lines, arguments.json, device.notes())
    report.fail_if_wrong(lines)


if __name__ == "__main__":
    main()
