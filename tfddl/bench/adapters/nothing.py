"""An asynchronous op of tfddl's library that only calls done(): the cost of TensorFlow itself."""

from __future__ import annotations

from typing import Any

from tfddl.bench.adapters import Process, Way, Ways, in_graph
from tfddl.bench.case import Case
from tfddl.runtime import library


def ways(process: Process) -> Ways:
    """Joins no job: each process works alone."""
    in_graph.one_thread()
    nothing = library.ops().tfddl_no_op

    def through(tape: Any, loss: Any, variables: Any) -> Any:
        return nothing(tape.gradient(loss, variables))

    def way(case: Case) -> Way:
        if case.operation == "gradients":
            return in_graph.step(case, process.rank, through, case.scale(process.rank))
        if case.operation == "training":
            return in_graph.Training(case, process.rank, through).way(equal=False)
        if case.operation == "chain":
            return in_graph.chain(lambda t, link: nothing([t])[0], case, process.rank, sums=False)
        x = case.values(process.rank)
        return in_graph.around(lambda t: nothing([t])[0], x, x)

    return way
