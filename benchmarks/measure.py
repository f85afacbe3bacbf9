"""Interleaved timing of several ways to do one thing in the processes of one job, on all ranks at once.

As `tfddl bench` does it over several jobs (`tfddl/bench/rounds.py`): ways take turns, their order is turned by one from
round to round; a block's time is the median of its calls on a rank, and then the largest over ranks. Here ranks meet in
a barrier before each block of calls, and the first round is thrown away.
"""

from collections.abc import Mapping

from mpi4py import MPI

from tfddl.bench.adapters import Way
from tfddl.bench.worker import block
from tfddl.bench.rounds import Timing


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
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            MPI.COMM_WORLD.Barrier()
            seconds, mine = block(ways[name], calls)
            wrong[name] += MPI.COMM_WORLD.allreduce(mine, MPI.SUM)
            slowest = MPI.COMM_WORLD.allreduce(seconds, MPI.MAX)
            if number > 0:
                blocks[name].append(slowest * 1e6)
    return {name: Timing(tuple(blocks[name]), wrong[name]) for name in names}
