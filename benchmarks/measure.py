"""Interleaved timing of several ways to do one thing, on all ranks at once.

How a number comes about:

- A *round* runs every way once for `calls` calls in a row; ways take turns, so that a slow second of the
  machine hits all of them. The order of the ways is turned by one from round to round.
- A call starts when this rank is ready and ends when its result is there. Ranks meet in a barrier before each
  block of calls, not before each call: a collective ends together anyway.
- A block's time is the median of its calls on this rank, and then the largest over ranks.
- `median` is the median over rounds; `low` and `high` are the 10th and 90th percentile over rounds.
- The first round is thrown away.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping

import numpy as np
from mpi4py import MPI


@dataclasses.dataclass(frozen=True)
class Timing:
    """Microseconds a call, and how many elements of the last result were wrong on any rank."""

    median: float
    low: float
    high: float
    wrong: int


@dataclasses.dataclass(frozen=True)
class Way:
    """One of the things that are compared.

    Attributes:
        call: Does it once; returns when the result is there.
        wrong: Counts the wrong elements of what the last call gave.
    """

    call: Callable[[], None]
    wrong: Callable[[], int]


def measure(ways: Mapping[str, Way], *, rounds: int, calls: int) -> dict[str, Timing]:
    """Times all ways; every rank gets the same answer.

    Args:
        ways: What to compare, by name; in the same order on all ranks.
        rounds: Blocks for each way, besides one to warm up.
        calls: Calls in a block.
    """
    names = list(ways)
    blocks: dict[str, list[float]] = {name: [] for name in names}
    wrong = dict.fromkeys(names, 0)
    for round_ in range(rounds + 1):
        turn = round_ % len(names)
        for name in names[turn:] + names[:turn]:
            seconds = _block(ways[name].call, calls)
            wrong[name] += MPI.COMM_WORLD.allreduce(ways[name].wrong(), MPI.SUM)
            if round_ > 0:
                blocks[name].append(seconds)
    return {name: _summary(blocks[name], wrong[name]) for name in names}


def _block(call: Callable[[], None], calls: int) -> float:
    """Seconds a call, of the slowest rank."""
    times = []
    MPI.COMM_WORLD.Barrier()
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return MPI.COMM_WORLD.allreduce(float(np.median(times)), MPI.MAX)


def _summary(blocks: list[float], wrong: int) -> Timing:
    low, median, high = (float(np.percentile(blocks, q)) * 1e6 for q in (10, 50, 90))
    return Timing(median, low, high, wrong)


def count_wrong(result: np.ndarray, expected: np.ndarray | float) -> int:
    """Elements that are not exactly what they should be."""
    return int(np.count_nonzero(result != expected))
