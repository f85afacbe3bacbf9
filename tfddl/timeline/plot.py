"""The picture of a job: a bar for each collective of each rank, waiting and moving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tfddl.timeline.trace import Trace


def draw(traces: Sequence[Trace], path: Path) -> None:
    """Writes a picture.

    Args:
        traces: From `align.read_job`.
        path: The output file. Its suffix gives the format: `.png` or `.svg`.
    """
    from matplotlib.figure import Figure  # not pyplot: no window, no display

    figure = Figure(figsize=(12, 1.5 + 0.5 * len(traces)), layout="constrained")
    axes = figure.add_subplot(xlabel="seconds")
    begin = min((trace.requests[0].submitted for trace in traces if trace.requests), default=0.0)
    for trace in traces:
        for row, (phase, color) in enumerate([("waiting", "tab:orange"), ("transfer", "tab:blue")]):
            intervals = [getattr(request, phase) for request in trace.requests]
            axes.broken_barh(
                [((start - begin) / 1e6, (end - start) / 1e6) for start, end in filter(None, intervals)],
                (trace.rank - 0.4 + 0.4 * row, 0.4),
                color=color,
                label={"waiting": "waiting for peers", "transfer": "moving"}[phase]
                if trace is traces[0]
                else None,
            )
    axes.set_yticks([trace.rank for trace in traces], [f"rank {trace.rank}" for trace in traces])
    axes.invert_yaxis()
    figure.legend(loc="outside upper right", ncols=2, fontsize="small")
    figure.savefig(path, dpi=110)
