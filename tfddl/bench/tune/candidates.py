"""The settings that are tried, and the choice among them by their times."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfddl.bench.rounds import Timing
from tfddl.gradients.buckets import DEFAULT_MEGABYTES, Shape, bucket_sizes, plan_buckets

DEFAULT = DEFAULT_MEGABYTES
_ALONE = "1e-06"
"""Each gradient travels by itself. Files for tfddlrun have 0 for it, as those of Horovod."""

_OTHERS = ("0.25,4", "1,8", "1,64", "4,64", "1,128", _ALONE, "4096")
"""Megabytes of the first and of the later buckets; the last one sends all gradients of a dtype together."""

_LEAST_GAIN = 0.02
"""A setting has to save this part of the default's time in three of four rounds: less is noise."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A setting of the bucket sizes.

    Attributes:
        megabytes: As in `TFDDL_BUCKET_MB`.
        buckets: The number of buckets of the model's gradients.
    """

    megabytes: str
    buckets: int

    @property
    def in_a_file(self) -> str:
        """The value of `fusion-threshold-mb` in a file for `tfddlrun --config-file`."""
        if self.megabytes == _ALONE:
            return "0"
        return f"[{self.megabytes}]" if "," in self.megabytes else self.megabytes


def candidates(gradients: Sequence[tuple[str, Shape]]) -> list[Candidate]:
    """The settings that make different buckets of a model's gradients, the default first.

    Args:
        gradients: Dtype name and shape of each gradient.
    """
    found: dict[str, Candidate] = {}
    for megabytes in (DEFAULT, *_OTHERS):
        plan = plan_buckets(gradients, bucket_sizes(megabytes))
        found.setdefault(plan.signature, Candidate(megabytes, len(plan.buckets)))
    return list(found.values())


def compare(timings: Mapping[str, Timing], first: str) -> list[dict[str, Any]]:
    """A line for each setting: its time, and its ratio to that of the first one in the same round.

    Args:
        timings: By setting.
        first: The setting that the others are held beside.
    """
    base = np.array(timings[first].blocks)
    lines = []
    for name, timing in timings.items():
        low, middle, high = np.percentile(np.array(timing.blocks) / base, [25, 50, 75])
        lines.append(
            {
                "setting": name,
                "ms": timing.median / 1e3,
                "ratio": float(middle),
                "p25": float(low),
                "p75": float(high),
                "#wrong": timing.wrong,
            }
        )
    return lines


def best(lines: Sequence[Mapping[str, Any]], first: str) -> str:
    """The setting with the least ratio of those that are clearly faster than the first one.

    Three of four of its rounds are faster, and its gain is larger than the distance of the quartiles.
    """
    faster = [
        line
        for line in lines
        if line["p75"] < 1 - _LEAST_GAIN and 1 - line["ratio"] > line["p75"] - line["p25"]
    ]
    return str(min(faster, key=lambda line: line["ratio"])["setting"]) if faster else first
