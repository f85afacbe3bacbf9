"""The timing harness: ways of doing one thing take turns, so that a slow second of the machine hits all of them.

- A *block* is a row of calls of one way. Its time is the median of the calls on a rank, then the largest of all ranks.
- A *round* has one block of each way. Their order is turned by one from round to round.
- The first round warms up and does not count.

`measure` compares ways within the processes of one job, `session.py` compares several jobs.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import time
from collections.abc import Callable, Mapping

import numpy as np

from tfddl.bench.adapters import Way

WARM_UP_CALLS = 2


@dataclasses.dataclass(frozen=True)
class Timing:
    """The times of one way.

    Attributes:
        blocks: Microseconds a call, for each round.
        wrong: Wrong elements of the checked results, over all rounds and ranks.
    """

    blocks: tuple[float, ...]
    wrong: int = 0

    @property
    def low(self) -> float:
        """The 10th percentile over rounds, in microseconds."""
        return float(np.percentile(self.blocks, 10))

    @property
    def median(self) -> float:
        """The median over rounds, in microseconds."""
        return float(np.median(self.blocks))

    @property
    def high(self) -> float:
        """The 90th percentile over rounds, in microseconds."""
        return float(np.percentile(self.blocks, 90))


def quiet(number: int) -> None:
    """Says nothing after a round."""


def interleave(
    blocks: Mapping[str, Callable[[], tuple[float, int] | None]],
    rounds: int,
    after_round: Callable[[int], None] = quiet,
) -> dict[str, Timing]:
    """Runs blocks in rounds.

    Args:
        blocks: By name. Each runs one block and returns the seconds of a call and the number of wrong elements, or None
            after a failure.
        rounds: Number of rounds that count. One more, the first, warms up.
        after_round: Gets the number of each round that has ended; 0 is the one that warms up.

    Returns:
        Timings by name, without those that failed.
    """
    names = list(blocks)
    times: dict[str, list[float]] = {name: [] for name in names}
    wrong = dict.fromkeys(names, 0)
    failed = set()
    for number in range(rounds + 1):
        turn = number % max(1, len(names))
        for name in names[turn:] + names[:turn]:
            block = blocks[name]()
            if block is None:
                failed.add(name)
                continue
            wrong[name] += block[1]
            if number > 0:
                times[name].append(block[0] * 1e6)
        after_round(number)
    return {name: Timing(tuple(times[name]), wrong[name]) for name in names if name not in failed}


def measure(
    ways: Mapping[str, Way],
    *,
    rounds: int,
    calls: int,
    after_round: Callable[[int], None] = quiet,
) -> dict[str, Timing]:
    """Times ways within one job. All ranks call it alike, and get the same answer.

    Args:
        ways: The ways to compare, by name, in the same order on all ranks.
        rounds: Number of rounds that count.
        calls: Calls in a block.
        after_round: See `interleave`.
    """
    blocks = {name: functools.partial(block_of_all_ranks, way, calls) for name, way in ways.items()}
    return interleave(blocks, rounds, after_round)


def block_of_all_ranks(way: Way, calls: int) -> tuple[float, int]:
    """Runs a block after a barrier. Returns its seconds on the slowest rank, and the wrong elements on all ranks."""
    from mpi4py import MPI  # initializes MPI, which a driver of several jobs must not do

    MPI.COMM_WORLD.Barrier()
    seconds, wrong = block(way, calls)
    return MPI.COMM_WORLD.allreduce(seconds, MPI.MAX), MPI.COMM_WORLD.allreduce(wrong, MPI.SUM)


def block(way: Way, calls: int) -> tuple[float, int]:
    """Runs a block on this rank. Returns the median seconds of a call, and the wrong elements of the last result.

    A call starts when this rank is ready and ends when its result is there. The ranks come together in the calls that
    warm up, which are not timed.
    """
    for _ in range(WARM_UP_CALLS):
        way.before()
        way.call()
    times = []
    gc.disable()
    for _ in range(calls):
        way.before()
        start = time.perf_counter()
        way.call()
        times.append(time.perf_counter() - start)
    gc.enable()
    return float(np.median(times)), way.wrong()
