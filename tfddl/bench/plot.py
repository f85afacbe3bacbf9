"""The picture: time against bytes, both logarithmic, or bars for sets of gradients and models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfddl.bench.results import LEFT_OUT, human


def draw(title: str, lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Writes a picture.

    Args:
        title: The heading.
        lines: Lines of `results.rows`.
        path: The output file. Its suffix gives the format: `.png` or `.svg`.
    """
    from matplotlib.figure import Figure  # not pyplot: no window, no display

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.add_subplot(title=title, ylabel="time of a call, us", yscale="log")
    shown = [line for line in lines if line["name"] not in LEFT_OUT and line["us"] > 0]
    names = list({line["name"]: None for line in shown})
    if any("set" in line for line in shown):
        _bars(axes, shown, names)
    else:
        _curves(axes, shown, names)
    axes.grid(which="major", alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def _curves(axes: Any, lines: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    axes.set(xscale="log", xlabel="bytes")
    for name in names:
        mine = [line for line in lines if line["name"] == name]
        sizes = [line["bytes"] for line in mine]
        derived = name in ("floor", "nothing", "futex", "shared")
        (curve,) = axes.plot(
            sizes,
            [line["us"] for line in mine],
            "--" if derived else "o-",
            linewidth=2.5 if name == "tfddl" else 1.2,
            label=mine[0]["what"],
        )
        if not derived:
            spread = ([line[column] for line in mine] for column in ("p10 us", "p90 us"))
            axes.fill_between(sizes, *spread, color=curve.get_color(), alpha=0.1, linewidth=0)
    sizes = sorted({line["bytes"] for line in lines})
    axes.set_xticks(sizes, [human(size) for size in sizes], fontsize="small")
    axes.minorticks_off()


def _bars(axes: Any, lines: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    sets = list({line["set"]: None for line in lines})
    titles = {line["name"]: line["what"] for line in lines}
    for number, name in enumerate(names):
        mine = {line["set"]: line for line in lines if line["name"] == name}
        centers = [sets.index(name) + (number + 0.5) * 0.8 / len(names) - 0.4 for name in mine]
        axes.bar(centers, [line["us"] for line in mine.values()], 0.8 / len(names), label=titles[name])
    axes.set_xticks(range(len(sets)), sets)
