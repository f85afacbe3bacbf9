"""Compares shared memory with MPI for moving tensors between ranks of one host.

    tfddlrun -np 2 python benchmarks/transport.py [--json FILE]

Columns, one line for each operation and size. tfddl/bench/rounds.py defines the time of a block; here the job
is started anew for each transport in turn, and each block follows a block that warms up. All numbers are medians over
the blocks.

- `bytes`: size of the float32 tensor that each rank gives.
- `shm us`, `MPI us`: one call of a tf.function with the operation, until its result is there.
- `nothing us`: the same function with `TfddlNoOp` instead: the cost of TensorFlow.
- `gain` = (MPI - nothing) / (shm - nothing).
- `shm moved us`, `MPI moved us`: the transfer within the same calls, from the agreement of all ranks until the result is
  complete, on the slowest rank, by the flight record. It excludes the parts that the transports share: the call of
  the engine, the vote, and the way back into TensorFlow.
- `moved gain` = MPI moved / shm moved. The bar is 2 from 64 KiB on. `ok` tells whether the line reaches it.
- `mpi4py us`: plain MPI, `Allreduce`, `Bcast` or `Allgather` of the same data between NumPy arrays (the root of a
  broadcast copies nothing).
- `mpi4py gain` = mpi4py / shm moved.
- `copy us`: one copy of the tensor into other memory, on all ranks at once: the cost of one pass over memory.
- `#wrong`: elements of the checked results that were not exactly right, over all blocks and ranks.
"""

import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import report
import tensorflow as tf
from mpi4py import MPI

import tfddl as hvd
from tfddl.bench.adapters import Way
from tfddl.bench.adapters.in_graph import around
from tfddl.bench.case import Case, count_wrong
from tfddl.bench.rounds import Timing, measure
from tfddl.flight import records
from tfddl.runtime import library

SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20)
BAR = 2.0


def restart(transport: str) -> None:
    """Starts the job anew, over the named transport."""
    hvd.shutdown()
    os.environ["TFDDL_TRANSPORT"] = transport
    hvd.init()


def inputs(size: int) -> list[np.ndarray]:
    """The inputs of all ranks: whole numbers."""
    case = Case("allreduce", hvd.size(), size // 4)
    return [case.values(rank) for rank in range(hvd.size())]


def operations(size: int) -> dict[str, Way]:
    """The operations on a tensor of `size` bytes, by name, and the op that does nothing."""
    ranks = inputs(size)
    x = ranks[hvd.rank()]
    total = np.sum(ranks, axis=0)
    run: dict[str, tuple[Callable[[tf.Tensor], tf.Tensor], np.ndarray]] = {
        "allreduce": (lambda t: hvd.allreduce(t, op=hvd.Sum, name=f"allreduce.{size}"), total),
        "broadcast": (lambda t: hvd.broadcast(t, 0, name=f"broadcast.{size}"), ranks[0]),
        "allgather": (lambda t: hvd.allgather(t, name=f"allgather.{size}"), np.concatenate(ranks)),
        "nothing": (lambda t: library.ops().tfddl_no_op([t])[0], x),
    }
    return {name: around(function, x, expected) for name, (function, expected) in run.items()}


def mpi_ways(size: int) -> dict[str, Way]:
    """The same operations by plain MPI, and one copy."""
    ranks = inputs(size)
    x = ranks[hvd.rank()]
    y, gathered = x.copy(), np.zeros_like(np.concatenate(ranks))
    world = MPI.COMM_WORLD
    run: dict[str, tuple[Callable[[], None], np.ndarray, np.ndarray]] = {
        "allreduce": (lambda: world.Allreduce(x, y), y, np.sum(ranks, axis=0)),
        "broadcast": (
            lambda: world.Bcast(x if world.rank == 0 else y),
            x if world.rank == 0 else y,
            ranks[0],
        ),
        "allgather": (lambda: world.Allgather(x, gathered), gathered, np.concatenate(ranks)),
        "copy": (lambda: np.copyto(y, x), y, x),
    }
    return {
        name: Way(call, partial(count_wrong, result, expected))
        for name, (call, result, expected) in run.items()
    }


def moved(name: str, calls: int) -> float:
    """Median microseconds from the start to the end of the last calls, on the slowest rank."""
    with tempfile.TemporaryDirectory() as folder:
        operations = records.read(Path(hvd.write_flight_record(folder))).operations[0]
    own = (each for each in operations if each.name == name)
    spent = [each.ended_us - each.started_us for each in own if each.started_us and each.ended_us]
    return MPI.COMM_WORLD.allreduce(float(statistics.median(spent[-calls:])), MPI.MAX)


def rows(size: int, rounds: int) -> list[dict[str, Any]]:
    """Measures one size: a line for each operation."""
    calls = max(3, min(200, (32 << 20) // size))
    ways = operations(size)
    nothing = measure({"nothing": ways.pop("nothing")}, rounds=rounds, calls=calls)["nothing"]
    alone = measure(mpi_ways(size), rounds=rounds, calls=calls)
    whole: dict[tuple[str, str], list[float]] = {}
    inside: dict[tuple[str, str], list[float]] = {}
    wrong = {name: nothing.wrong + alone[name].wrong for name in ways}
    for _ in range(rounds):
        for transport in ("auto", "mpi"):
            restart(transport)
            for name, way in ways.items():
                timing = measure({name: way}, rounds=1, calls=calls)[name]
                whole.setdefault((name, transport), []).append(timing.median)
                inside.setdefault((name, transport), []).append(moved(f"{name}.{size}", calls))
                wrong[name] += timing.wrong
    return [
        line(
            name,
            size,
            nothing.median,
            alone,
            {transport: statistics.median(whole[name, transport]) for transport in ("auto", "mpi")},
            {transport: statistics.median(inside[name, transport]) for transport in ("auto", "mpi")},
            wrong[name],
        )
        for name in ways
    ]


def line(
    name: str,
    size: int,
    nothing: float,
    alone: dict[str, Timing],
    whole: dict[str, float],
    inside: dict[str, float],
    wrong: int,
) -> dict[str, Any]:
    """One line of the table."""
    gain = inside["mpi"] / inside["auto"]
    return {
        "operation": name,
        "bytes": size,
        "shm us": whole["auto"],
        "MPI us": whole["mpi"],
        "nothing us": nothing,
        "gain": (whole["mpi"] - nothing) / (whole["auto"] - nothing),
        "shm moved us": inside["auto"],
        "MPI moved us": inside["mpi"],
        "moved gain": gain,
        "mpi4py us": alone[name].median,
        "mpi4py gain": alone[name].median / inside["auto"],
        "copy us": alone["copy"].median,
        "ok": "yes" if gain >= BAR else "NO",
        "#wrong": wrong,
    }


def main() -> None:
    """Measures every size."""
    arguments = report.parser(__doc__, SIZES).parse_args()
    restart("auto")
    table = [row for size in arguments.sizes for row in rows(size, arguments.rounds)]
    report.show(f"shared memory against MPI, float32, {hvd.size()} ranks", table, arguments.json)
    report.fail_if_wrong(table)


if __name__ == "__main__":
    main()
