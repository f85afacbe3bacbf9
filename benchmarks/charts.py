"""Draws the charts of docs/project/benchmarks.md from the tables of docs/performance.md.

    python benchmarks/charts.py

The efficiency of a training step is the time of a step in which an op that does nothing takes the place of communication,
divided by the time of the step.
"""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLORS = {"tfddl": "#1f77b4", "without communication": "#9ecae1"}
"""The color of each bar that is not another library's."""
OTHERS = "#b0b0b0"

Row = list[float]
Bar = tuple[str, str, float]  # what was measured, the library, the number


@dataclasses.dataclass
class Chart:
    """Horizontal bars.

    Attributes:
        path: The file, in the repository.
        title: What the axis shows, with its unit.
        form: The format of a number beside its bar.
        bars: The bars from the top.
        pages: Pages whose text has the same numbers.
    """

    path: str
    title: str
    form: str
    bars: list[Bar]
    pages: tuple[str, ...] = ("docs/project/benchmarks.md",)

    def labels(self) -> list[str]:
        return [self.form.format(value) for _, _, value in self.bars]


def charts() -> list[Chart]:
    """All charts, with the numbers of the tables."""
    horovod = table("Beside Horovod")
    three = {"tfddl": at(0), "without communication": at(1), "Horovod": at(2)}
    return [
        Chart(
            "docs/efficiency.svg",
            "training efficiency on 2 processes, % (100: communication costs nothing)",
            "{:.0f} %",
            bars(
                horovod,
                {"a training step of the CNN, ms": "CNN", "a training step of ResNet-20, ms": "ResNet-20"},
                {"tfddl": percent(1, 0), "Horovod": percent(1, 2)},
            ),
            ("README.md", "docs/index.md", "docs/project/benchmarks.md"),
        ),
        Chart(
            "docs/images/training-strategy.svg",
            "a training step, ms",
            "{:.1f} ms",
            bars(
                table("Training"),
                {model: model for model in ("CNN", "VGG-11", "ResNet-20")},
                {"tfddl": at(1), "without communication": at(2), "tf.distribute": at(5)},
            ),
        ),
        Chart(
            "docs/images/gradients-horovod.svg",
            "all gradients of a model, ms",
            "{:.1f} ms",
            bars(horovod, {f"gradients of {model}, ms": model for model in ("ResNet-50", "VGG-16")}, three),
        ),
        Chart(
            "docs/images/allreduce-mpi.svg",
            "one allreduce, ms",
            "{:.1f} ms",
            bars(
                table("One allreduce on the Xeon"),
                {f"{size} M": f"{size} MB" for size in (1, 16, 64, 256)},
                {"tfddl": at(0, 1000), "mpi4py": at(2, 1000)},
            ),
        ),
        Chart(
            "docs/images/allreduce-horovod.svg",
            "one allreduce, us",
            "{:,.0f} us",
            bars(horovod, {f"allreduce of {size}, us": size for size in ("4 B", "64 KB", "1 MB")}, three),
        ),
        Chart(
            "docs/images/between-hosts.svg",
            "one allreduce between hosts, ms",
            "{:.1f} ms",
            bars(
                table("Beside other libraries"),
                {
                    "2 x 1, 1 Gbit/s: allreduce of 16 MB": "2 hosts x 1 rank, 16 MB",
                    "2 x 2, 1 Gbit/s: allreduce of 16 MB": "2 x 2, 16 MB",
                    "4 x 1, 100 Mbit/s: allreduce of 4 MB": "4 x 1, 4 MB",
                },
                {
                    name: at(column)
                    for column, name in enumerate(("tfddl", "raw TCP", "mpi4py", "Horovod", "gloo"))
                },
            ),
        ),
    ]


def table(heading: str) -> dict[str, Row]:
    """The first table below a heading: first cell -> the first number of each further cell, NaN where it has none."""
    text = (ROOT / "docs" / "performance.md").read_text()
    section = re.split(rf"^##+ {re.escape(heading)}$", text, flags=re.MULTILINE)[1]
    lines = re.search(r"^\|.*\n(\|.*\n)+", section, re.MULTILINE)
    assert lines, heading
    found = {}
    for line in lines[0].splitlines():
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        numbers = (re.match(r"[\d,]*\d(\.\d+)?", cell) for cell in cells)
        found[first] = [float(number[0].replace(",", "") if number else "nan") for number in numbers]
    return found


def at(column: int, divisor: float = 1) -> Callable[[Row], float]:
    return lambda row: row[column] / divisor


def percent(base: int, column: int) -> Callable[[Row], float]:
    return lambda row: 100 * row[base] / row[column]


def bars(
    of: dict[str, Row], names: dict[str, str], libraries: dict[str, Callable[[Row], float]]
) -> list[Bar]:
    """One bar for each row, by its name in the chart, and each library."""
    return [
        (shown, library, value(of[name]))
        for name, shown in names.items()
        for library, value in libraries.items()
    ]


def draw(chart: Chart) -> None:
    """Writes a chart, with the same bytes each time."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.hashsalt": "tfddl", "svg.fonttype": "none", "font.size": 10})
    figure = Figure(figsize=(7, (8 + 4 * len(chart.bars)) / 10), layout="constrained")
    axes = figure.add_subplot()
    values = [value for _, _, value in chart.bars]
    axes.barh(
        [f"{what}, {library}" for what, library, _ in chart.bars],
        values,
        color=[COLORS.get(library, OTHERS) for _, library, _ in chart.bars],
    )
    end = 100 if chart.form.endswith("%") else 1.15 * max(values)
    for index, label in enumerate(chart.labels()):
        axes.text(values[index] + 0.01 * end, index, label, va="center")
    axes.invert_yaxis()
    axes.set(xlim=(0, end), xlabel=chart.title)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(ROOT / chart.path, metadata={"Date": None})


if __name__ == "__main__":
    for each in charts():
        draw(each)
