"""Rank 0 trains alone while the other ranks sleep: the step of a single process."""

from __future__ import annotations

from tfddl.bench.adapters import Process, Way, Ways, in_graph
from tfddl.bench.case import Case


def ways(process: Process) -> Ways:
    """Joins no job."""
    in_graph.one_thread()

    def way(case: Case) -> Way:
        if process.rank > 0:
            return Way(lambda: None, lambda: 0)
        plain = in_graph.Training(case, 0, lambda tape, loss, variables: tape.gradient(loss, variables))
        return plain.way(equal=False)

    return way
