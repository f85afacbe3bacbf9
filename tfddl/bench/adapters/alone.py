"""Rank 0 trains by itself while the others sleep: what one process does in a step."""

from __future__ import annotations

from tfddl.bench.adapters import Place, Way, Ways, in_graph
from tfddl.bench.case import Case


def ways(place: Place) -> Ways:
    """Joins nothing."""
    in_graph.one_thread()

    def way(case: Case) -> Way:
        if place.rank > 0:
            return Way(lambda: None, lambda: 0)
        plain = in_graph.Training(case, 0, lambda tape, loss, variables: tape.gradient(loss, variables))
        return plain.way(equal=False)

    return way
