"""The tables of `make soak`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from tests.soak.samples import Sample, after_warm_up, growth, leaks

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40


def plot(values: Sequence[float]) -> str:
    """The values as a line of bars, from the lowest to the highest."""
    some = (
        [values[index * len(values) // _WIDTH] for index in range(_WIDTH)] if len(values) > _WIDTH else values
    )
    low, span = min(some), max(some) - min(some)
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1)) if span else 0] for value in some)


def flatness(ranks: Sequence[Sequence[Sample]]) -> Table:
    """A row for each rank and quantity."""
    table = Table("rank", "", "first", "last", "growth after the warm-up", "over the whole run", "")
    for rank, samples in enumerate(ranks):
        words = " ".join(leaks(samples))
        for kind, unit in (("rss", "MB"), ("shared", "MB"), ("descriptors", ""), ("threads", "")):
            values = [getattr(sample, kind) for sample in samples]
            steady = [getattr(sample, kind) for sample in after_warm_up(samples)]
            change = f"{growth(samples, kind):+.2f} MB" if unit else f"{min(steady)} to {max(steady)}"
            verdict = "[red]not flat" if kind in words else "flat"
            ends = [f"{value:.1f} MB" if unit else f"{value}" for value in (values[0], values[-1])]
            table.add_row(str(rank), kind, *ends, change, plot(values), verdict)
    return table
