"""What a rank holds at one moment, and the rule by which a series of moments is flat."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

WARM_UP = 0.3
"""The part of the samples, from the first on, that the rule leaves out: caches fill, memory pools grow."""
GROWTH_MB = 8.0
"""Growth below it is no leak: allocators keep free memory in pieces. After 10,000 steps it finds 1.2 kB a step."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """What one process holds.

    Attributes:
        step: Steps that the process has made.
        rss: Resident memory, in MB.
        shared: The process's part of the memory that it shares with other ranks, in MB.
        descriptors: Open file descriptors.
        threads: Threads.
    """

    step: int
    rss: float
    shared: float
    descriptors: int
    threads: int


def take(step: int) -> Sample:
    """Measures this process."""
    kb = dict(re.findall(r"^(\w+):\s+(\d+) kB$", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE))
    return Sample(
        step,
        int(kb["Rss"]) / 1024,
        int(kb["Pss_Shmem"]) / 1024,
        len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")),
    )


def after_warm_up(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The samples that the rule looks at."""
    return samples[int(len(samples) * WARM_UP) :]


def growth(samples: Sequence[Sample], kind: str) -> float:
    """How much `kind` grows after the warm-up: the slope of the least-squares line times the steps."""
    steady = after_warm_up(samples)
    steps = [sample.step for sample in steady]
    slope = np.polyfit(steps, [getattr(sample, kind) for sample in steady], 1)[0]
    return float(slope) * (steps[-1] - steps[0])


def leaks(samples: Sequence[Sample]) -> list[str]:
    """What is not flat, in words. Empty if everything is flat.

    Memory is flat if it grows by less than `GROWTH_MB` after the warm-up. File descriptors and threads are flat if all
    samples after the warm-up have the same number.
    """
    found = []
    for kind in ("rss", "shared"):
        grown = growth(samples, kind)
        if grown >= GROWTH_MB:
            found.append(f"{kind} grows by {grown:.1f} MB")
    for kind in ("descriptors", "threads"):
        numbers = [getattr(sample, kind) for sample in after_warm_up(samples)]
        if min(numbers) != max(numbers):
            found.append(f"{kind} are between {min(numbers)} and {max(numbers)}")
    return found
