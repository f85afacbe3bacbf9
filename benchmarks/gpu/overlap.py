"""Measures the share of a step's communication that overlaps its computation on GPUs.

    tfddlrun -np 2 python benchmarks/gpu/overlap.py [--json FILE]

A step is a chain of matrix products. Between two parts of the chain one bucket of gradients is reduced, and only the end of
the step needs the result. So the products behind it can hide each bucket, the last one too. Columns:

- `MB`: size of a bucket. `buckets`: number of buckets.
- `compute us`: the chain alone. `reduce us`: the buckets alone, each after the one before.
- `step us`: both, as in training.
- `exposed us` = step - compute: the time that communication adds. `hidden` = 1 - exposed / reduce: 1 if all of it overlaps
  the products, 0 if the products wait for it.
- `#wrong`: elements of the reduced buckets that were not the exact sum.
"""

from collections.abc import Callable
from typing import Any

import device
import numpy as np
import report
import tensorflow as tf

import tfddl as hvd
from tfddl.bench.adapters import Way
from tfddl.bench.case import count_wrong
from tfddl.bench.rounds import measure

MEGABYTES = (1, 25)
BUCKETS = 8


def reduced(buckets: list[tf.Tensor], number: int) -> tf.Tensor:
    """Sums one bucket over the ranks."""
    return hvd.allreduce(buckets[number], op=hvd.Sum, name=f"overlap.{number}")


def product(x: tf.Tensor, weight: tf.Tensor, times: int) -> tf.Tensor:
    """A chain of so many products. The weight is the identity, so values stay bounded."""
    for _ in range(times):
        x = tf.linalg.matmul(x, weight)
    return x


def row(megabytes: int, rounds: int, width: int, times: int) -> dict[str, Any]:
    """Measures one line of the table."""
    count = megabytes << 18
    with tf.device(device.GPU):
        x = tf.random.stateless_normal([width, width], [0, hvd.rank()])
        weight = tf.eye(width)
        buckets = [tf.fill([count], float(hvd.rank() + number)) for number in range(BUCKETS)]

    def compute() -> list[tf.Tensor]:
        return [product(x, weight, (BUCKETS + 1) * times)]

    def reduce() -> list[tf.Tensor]:
        results: list[tf.Tensor] = []
        for number in range(BUCKETS):
            with tf.control_dependencies(results[-1:]):
                results.append(reduced(buckets, number))
        return results

    def step() -> list[tf.Tensor]:
        y, results = x, []
        for number in range(BUCKETS):
            y = product(y, weight, times)
            with tf.control_dependencies([y]):
                results.append(reduced(buckets, number))
        return [*results, product(y, weight, times)]

    sums = [sum(rank + number for rank in range(hvd.size())) for number in range(BUCKETS)]
    ways = {
        name: _way(function, sums)
        for name, function in [("compute", compute), ("reduce", reduce), ("step", step)]
    }
    timings = measure(ways, rounds=rounds, calls=5)
    compute_us, reduce_us, step_us = (timings[name].median for name in ways)
    return {
        "MB": megabytes,
        "buckets": BUCKETS,
        "compute us": compute_us,
        "reduce us": reduce_us,
        "step us": step_us,
        "exposed us": step_us - compute_us,
        "hidden": 1 - (step_us - compute_us) / reduce_us,
        "#wrong": sum(timing.wrong for timing in timings.values()),
    }


def _way(function: Callable[[], list[tf.Tensor]], sums: list[int]) -> Way:
    """A function of a step on the GPU. Each call reads the last tensor, which waits for the computation."""

    @tf.function
    def run() -> list[tf.Tensor]:
        with tf.device(device.GPU):
            return function()

    last: list[tf.Tensor] = []

    def call() -> None:
        last[:] = run()
        np.asarray(last[-1][..., :1])

    def wrong() -> int:
        buckets = last[:BUCKETS] if len(last) >= BUCKETS else []
        return sum(count_wrong(y.numpy(), float(s)) for y, s in zip(buckets, sums, strict=False))

    return Way(call, wrong)


def main() -> None:
    """Measures buckets of every size."""
    parser = report.parser(__doc__)
    parser.add_argument("--width", type=int, default=4096, help="rows and columns of the matrices")
    parser.add_argument("--times", type=int, default=4, help="products between two buckets")
    parser.add_argument("--megabytes", type=int, nargs="+", default=MEGABYTES, help="sizes of a bucket")
    arguments = parser.parse_args()
    device.start()
    rows = [row(size, arguments.rounds, arguments.width, arguments.times) for size in arguments.megabytes]
    report.show(f"buckets behind computation, {hvd.size()} ranks", rows, arguments.json, device.notes())
    report.fail_if_wrong(rows)


if __name__ == "__main__":
    main()
