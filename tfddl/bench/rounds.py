"""Takes turns over the jobs, so that a slow second of the machine hits all of them, and makes medians.

- A *round* runs a block of calls of every adapter. Their order is turned by one from round to round.
- A block's time is the median of its calls on a rank, and then the largest over ranks.
- The first round is thrown away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from tfddl.bench.adapters import Adapter
from tfddl.bench.case import Case
from tfddl.bench.worker_group import WorkerGroup, WorkerError

T = TypeVar("T")

_KEPT_BYTES = 32 << 20
"""Larger data is made anew for each block and freed after it: all adapters together would not find room for it."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """Microseconds a call, one number for each round, and how many elements of the checked results were wrong."""

    blocks: tuple[float, ...]
    wrong: int = 0

    @property
    def low(self) -> float:
        """The 10th percentile over rounds."""
        return float(np.percentile(self.blocks, 10))

    @property
    def median(self) -> float:
        """Over rounds."""
        return float(np.median(self.blocks))

    @property
    def high(self) -> float:
        """The 90th percentile over rounds."""
        return float(np.percentile(self.blocks, 90))


def calls_for(case: Case) -> int:
    """How many calls make a block."""
    return case.steps or max(3, min(200, (32 << 20) // case.bytes))


def kept(case: Case) -> bool:
    """Whether what a case needs stays from block to block. A model does, whose steps follow on one another."""
    return case.operation == "training" or case.bytes <= _KEPT_BYTES


class Session:
    """The jobs of one run.

    Args:
        adapters: Which to start, by name.
        ranks: Processes of each.
        say: Where a line goes that tells what happens.

    Attributes:
        failed: Names of adapters that broke down, with what they said; what they measured before stays.
    """

    def __init__(self, adapters: dict[str, Adapter], ranks: int, say: Callable[[str], None]):
        self.failed: dict[str, str] = {}
        self._say = say
        self._jobs: dict[str, WorkerGroup] = {}
        for name, adapter in adapters.items():
            say(f"starting {adapter.title}")
            try:
                self._jobs[name] = WorkerGroup(adapter, ranks)
            except WorkerError as error:
                self._drop(name, error)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._jobs.values():
            job.close()

    def measure(self, case: Case, rounds: int) -> dict[str, Timing]:
        """Times all adapters that have the case.

        Args:
            case: What to do.
            rounds: Blocks of each, besides one to warm up.

        Returns:
            Timings by name.
        """
        names = [name for name in list(self._jobs) if self._try(name, lambda job: self._prepare(job, case))]
        blocks: dict[str, list[float]] = {name: [] for name in names}
        wrong = dict.fromkeys(names, 0)
        for number in range(rounds + 1):
            turn = number % max(1, len(names))
            for name in names[turn:] + names[:turn]:
                done = self._try(name, lambda job: self._block(job, case))
                if done is None:
                    continue
                seconds, found = done
                wrong[name] += found
                if number > 0:
                    blocks[name].append(seconds * 1e6)
        return {name: Timing(tuple(blocks[name]), wrong[name]) for name in names if name in self._jobs}

    def _prepare(self, job: WorkerGroup, case: Case) -> bool:
        able = case.operation in job.adapter.operations and job.prepare(case)
        if able and not kept(case):
            job.release()
        return able

    def _block(self, job: WorkerGroup, case: Case) -> tuple[float, int]:
        if kept(case):
            return job.block(calls_for(case))
        job.prepare(case)
        done = job.block(calls_for(case))
        job.release()
        return done

    def _try(self, name: str, what: Callable[[WorkerGroup], T]) -> T | None:
        """Does it with a job; one that breaks down is dropped."""
        if name not in self._jobs:
            return None
        try:
            return what(self._jobs[name])
        except WorkerError as error:
            self._drop(name, error)
            return None

    def _drop(self, name: str, error: WorkerError) -> None:
        self.failed[name] = str(error)
        self._say(str(error))
        if name in self._jobs:
            self._jobs.pop(name).close()
