"""Draws docs/efficiency.svg: what part of a training step is not communication, with tfddl and with Horovod.

    python benchmarks/efficiency_chart.py

The times are those in "Beside Horovod" of docs/performance.md. Efficiency is the time of a step in which an op that does
nothing takes the place of communication, divided by the time of the step.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = {"tfddl": "#1f77b4", "Horovod": "#b0b0b0"}


def efficiencies() -> dict[str, dict[str, float]]:
    """Model -> library -> efficiency, from the table."""
    found: dict[str, dict[str, float]] = {}
    for line in (ROOT / "docs" / "performance.md").read_text().splitlines():
        row = re.match(
            r"\| a training step of (?:the )?(\S+), ms \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", line
        )
        if row:
            tfddl, base, horovod = map(float, row.groups()[1:])
            found[row[1]] = {"tfddl": base / tfddl, "Horovod": base / horovod}
    return found


def draw(path: Path) -> None:
    """Writes the chart, with the same bytes each time."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.hashsalt": "tfddl", "svg.fonttype": "none", "font.size": 10})
    figure = Figure(figsize=(7, 2.4), layout="constrained")
    axes = figure.add_subplot()
    rows = [
        (f"{model}, {library}", library, value)
        for model, by in efficiencies().items()
        for library, value in by.items()
    ]
    axes.barh(
        [label for label, _, _ in rows],
        [100 * value for _, _, value in rows],
        color=[LIBRARIES[name] for _, name, _ in rows],
    )
    for index, (_, _, value) in enumerate(rows):
        axes.text(100 * value + 1, index, f"{100 * value:.0f} %", va="center")
    axes.invert_yaxis()
    axes.set(xlim=(0, 100), xlabel="training efficiency on 2 processes, % (100: communication costs nothing)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(ROOT / "docs" / "efficiency.svg")
