"""Training without communication, with a barrier after each step: the cost of waiting for the slower rank."""

from __future__ import annotations

from mpi4py import MPI

from tfddl.bench.adapters import Process, Way, Ways, nothing
from tfddl.bench.case import Case


def ways(process: Process) -> Ways:
    """Uses MPI.COMM_WORLD."""
    by_themselves = nothing.ways(process)

    def way(case: Case) -> Way | None:
        step = by_themselves(case)
        return step and Way(lambda: _then_meet(step), step.wrong)

    return way


def _then_meet(step: Way) -> None:
    step.call()
    MPI.COMM_WORLD.Barrier()
