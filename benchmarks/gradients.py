"""Time to average the gradients of a whole model through `DistributedGradientTape`.

    tfddlrun -np 2 python benchmarks/gradients.py [--json FILE]

Two sets: the 161 tensors of ResNet-50 (25.6 million float32) and 1,000 tensors of 1 KB. The loss is
`scale * sum of all variables`, so that every gradient is `scale` everywhere: computing them costs next to
nothing, and the average over ranks is exact. Columns (`measure.py` says how a median comes about):

- `tensors`, `MB`: size of the set that each rank gives.
- `tfddl us`: one call of a tf.function that takes gradients through the distributed tape and returns them.
- `tape us`: the same function with TensorFlow's own tape. What filling and returning the gradients costs.
- `nothing us`: the same again, with all gradients sent through one `TfddlNothing`: TensorFlow's part of a
  collective on that many tensors.
- `mpi each us`: one mpi4py `Allreduce` for each tensor, one after another.
- `mpi fused us`: all tensors copied into one buffer, one `Allreduce`, copied back.
- `over us` = tfddl - nothing - the smaller of the two mpi columns: what tfddl adds. The bar is 100 us; `ok`
  says whether the line is below it.
- `p10-p90 us`: spread of tfddl's blocks.
- `algbw GB/s` = bytes / (tfddl - tape): the rate at which gradients get averaged.
- `votes`: votes that one step of tfddl took; 1 is what the plan of buckets promises.
- `#wrong`: elements that were not the exact average (sum for MPI), over all rounds, ranks and ways.
"""

from collections.abc import Callable, Sequence
from typing import Any

import measure
import numpy as np
import report
import shapes
import tensorflow as tf
from mpi4py import MPI

import tfddl as hvd
from tfddl import runtime
from tfddl.runtime import library

SETS: dict[str, Callable[[], list[shapes.Shape]]] = {
    "ResNet-50": shapes.resnet50,
    "1,000 x 1 KB": shapes.many_small,
}
BAR_US = 100.0


def scale_of(rank: int) -> float:
    """The gradient of a rank. Its mean over ranks is exact in float32."""
    return float(2 * rank * MPI.COMM_WORLD.size + 1)


def tape_way(variables: Sequence[tf.Variable], finish: Callable[..., Any], expected: float) -> measure.Way:
    """A step that only computes gradients; `finish(tape, loss, variables)` takes them."""

    @tf.function
    def step(scale: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = scale * tf.add_n([tf.reduce_sum(variable) for variable in variables])
        return finish(tape, loss, variables)

    scale = tf.constant(scale_of(hvd.rank()))
    last: list[list[tf.Tensor]] = [[]]

    def call() -> None:
        last[0] = step(scale)

    return measure.Way(call, lambda: sum(measure.count_wrong(t.numpy(), expected) for t in last[0]))


def plain(tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[tf.Variable]) -> Any:
    """Gradients of this rank alone."""
    return tape.gradient(loss, variables)


def through_nothing(tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[tf.Variable]) -> Any:
    """Gradients of this rank, once through the op that does nothing."""
    return library.ops().tfddl_nothing(tape.gradient(loss, variables))


def averaged(tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[tf.Variable]) -> Any:
    """Gradients of all ranks."""
    return hvd.DistributedGradientTape(tape).gradient(loss, variables)


def mpi_each(shapes_: Sequence[shapes.Shape], expected: float) -> measure.Way:
    """One Allreduce a tensor, out of one array into another."""
    inputs = [np.full(shape, scale_of(hvd.rank()), "float32") for shape in shapes_]
    results = [np.empty_like(x) for x in inputs]

    def call() -> None:
        for x, result in zip(inputs, results, strict=True):
            MPI.COMM_WORLD.Allreduce(x, result)

    return measure.Way(call, lambda: sum(measure.count_wrong(result, expected) for result in results))


def mpi_fused(shapes_: Sequence[shapes.Shape], expected: float) -> measure.Way:
    """One Allreduce for all, with the copies that this takes."""
    inputs = [np.full(shape, scale_of(hvd.rank()), "float32").ravel() for shape in shapes_]
    results = [np.empty_like(x) for x in inputs]
    packed = np.empty(sum(x.size for x in inputs), "float32")
    reduced = np.empty_like(packed)
    starts = np.cumsum([0, *(x.size for x in inputs)])

    def call() -> None:
        np.concatenate(inputs, out=packed)
        MPI.COMM_WORLD.Allreduce(packed, reduced)
        for result, start in zip(results, starts, strict=False):
            result[:] = reduced[start : start + result.size]

    return measure.Way(call, lambda: sum(measure.count_wrong(result, expected) for result in results))


def row(name: str, rounds: int) -> dict[str, Any]:
    """Measures one set."""
    wanted = SETS[name]()
    variables = [tf.Variable(tf.zeros(shape)) for shape in wanted]
    total = sum(scale_of(rank) for rank in range(hvd.size()))
    mine = scale_of(hvd.rank())
    ways = {
        "tfddl": tape_way(variables, averaged, total / hvd.size()),
        "tape": tape_way(variables, plain, mine),
        "nothing": tape_way(variables, through_nothing, mine),
        "each": mpi_each(wanted, total),
        "fused": mpi_fused(wanted, total),
    }
    timings = measure.measure(ways, rounds=rounds, calls=3)
    before = runtime.stats()["votes"]
    ways["tfddl"].call()
    votes = runtime.stats()["votes"] - before
    tfddl, fastest = timings["tfddl"], min(timings["each"].median, timings["fused"].median)
    over = tfddl.median - timings["nothing"].median - fastest
    size = 4 * shapes.floats(wanted)
    return {
        "set": name,
        "tensors": len(wanted),
        "MB": size / 1e6,
        "tfddl us": tfddl.median,
        "p10-p90 us": f"{tfddl.low:,.0f}-{tfddl.high:,.0f}",
        "tape us": timings["tape"].median,
        "nothing us": timings["nothing"].median,
        "mpi each us": timings["each"].median,
        "mpi fused us": timings["fused"].median,
        "over us": over,
        "ok": "yes" if over <= BAR_US else "NO",
        "algbw GB/s": size / max(tfddl.median - timings["tape"].median, 1e-3) / 1e3,
        "votes": votes,
        "#wrong": sum(timing.wrong for timing in timings.values()),
    }


def main() -> None:
    """Measures both sets."""
    parser = report.parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="which ones")
    arguments = parser.parse_args()
    hvd.init()
    rows = [row(name, arguments.rounds) for name in arguments.sets]
    report.show(f"gradients through the tape, {hvd.size()} ranks", rows, arguments.json)
    report.fail_if_wrong(rows)


if __name__ == "__main__":
    main()
