"""The pictures: curves of one and two processes beside each other, and the times of all examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from packages.gallery.runs import Run

COLORS = {1: "#9a9a9a", 2: "#1f77b4"}
# The same bytes each time, and text that stays text.
matplotlib.rcParams.update(
    {
        "svg.hashsalt": "tfddl",
        "svg.fonttype": "none",
        "font.size": 9,
        "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial"],
    }
)


def draw_example(runs: Sequence[Run], metrics: Sequence[str], path: Path) -> None:
    """Writes the curves of each metric, and the time of an epoch."""
    figure = Figure(figsize=(2.6 * (len(metrics) + 1), 2.3), layout="constrained")
    *curves, times = figure.subplots(1, len(metrics) + 1)
    for axes, metric in zip(curves, metrics, strict=True):
        for run in runs:
            x, y = zip(*run.curve(metric), strict=True)
            label = f"{run.processes} process{'es' if run.processes > 1 else ''}"
            axes.plot(x, y, color=COLORS[run.processes], label=label, linewidth=1.5, marker=".", markersize=3)
        axes.set(xlabel="epoch" if runs[0].unit == "epoch" else "batches of all processes", title=metric)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    curves[0].legend(frameon=False, fontsize="small")
    _draw_times(times, runs)
    _save(figure, path)


def draw_scaling(paces: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Writes how many times as fast two processes are as one, for each example.

    Args:
        paces: example -> number of processes -> seconds of an epoch or a batch.
        path: the file.
    """
    figure = Figure(figsize=(7, 0.5 + 0.28 * len(paces)), layout="constrained")
    axes = figure.add_subplot()
    factors = [pace[1] / pace[2] for pace in paces.values()]
    axes.barh(list(paces), factors, color=COLORS[2], height=0.65)
    for row, factor in enumerate(factors):
        axes.text(factor + 0.02, row, f"{factor:.2f}", va="center")
    for limit in (1, 2):
        axes.axvline(limit, color="#c0c0c0", linewidth=1, zorder=0)
    axes.set(xlim=(0, max(2.1, *factors) + 0.15), xlabel="2 processes: times as fast as 1 (2 would be ideal)")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _draw_times(axes: Axes, runs: Sequence[Run]) -> None:
    unit = runs[0].unit
    factor, name = (1.0, "s") if unit == "epoch" else (1e3, "ms")
    values = [factor * run.pace() for run in runs]
    bars = axes.bar([str(run.processes) for run in runs], values, width=0.6)
    for bar, run in zip(bars, runs, strict=True):
        bar.set_color(COLORS[run.processes])
    axes.bar_label(bars, [f"{value:.2g}" for value in values], padding=2)
    axes.set(xlabel="processes", title=f"time of a{'n' if unit == 'epoch' else ''} {unit}, {name}")
    axes.margins(y=0.15)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
