"""Collectives over several hosts in two ways, which take turns in one job: by hosts, and each rank with each."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import tfddl as hvd
from tfddl.bench.adapters import Way
from tfddl.bench.rounds import Timing, block_of_all_ranks, interleave, quiet

VARIABLE = "TFDDL_HIERARCHICAL_ALLREDUCE"
LEVELS = ("1", "0")
"""Values of this variable: by hosts, the default, and each rank with each."""


def restart(level: str) -> None:
    """Starts tfddl anew with one of `LEVELS`. All ranks call it."""
    hvd.shutdown()
    os.environ[VARIABLE] = level
    hvd.init()


def measure_levels(
    way: Way, *, rounds: int, calls: int, after_round: Callable[[int], None] = quiet
) -> dict[str, Timing]:
    """Times a way with each of `LEVELS`. All ranks call it; tfddl starts anew before each block.

    Args:
        way: What is timed.
        rounds: Number of rounds that count.
        calls: Calls in a block.
        after_round: See `rounds.interleave`.
    """

    def block(level: str) -> tuple[float, int]:
        restart(level)
        block_of_all_ranks(way, calls)  # warms up
        return block_of_all_ranks(way, calls)

    return interleave({level: partial(block, level) for level in LEVELS}, rounds, after_round)
