"""Rank 0 trains by itself while the others sleep: what one process does in a step."""

from __future__ import annotations

from tfddl.bench.adapters import Process, Way, Ways, in_graph
from tfddl.bench.case import Case


def ways(process: Process) -> Ways:
    """Joins nothing."""
    in_graph.one_thread()

    def way(case: Case) -> Way:
        if process.rank > 0:
            return Way(lambda: None, lambda: 0)
        plain = in_graph.Training(case, 0, lambda tape, loss, variables: tape.gradient(loss, variables))
        return plain.way(equal=False)

    return way
