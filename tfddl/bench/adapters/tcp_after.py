"""A training step without communication, then the bytes of its gradients by raw TCP between the hosts."""

from __future__ import annotations

from mpi4py import MPI

from tfddl.bench.adapters import Process, Way, Ways, nothing, tcp
from tfddl.bench.case import Case


def ways(process: Process) -> Ways:
    """Uses MPI's communicator of a host: its ranks meet before and after its first one exchanges the bytes."""
    steps, exchanges = nothing.ways(process), tcp.ways(process)
    host = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)

    def way(case: Case) -> Way | None:
        step, exchange = steps(case), exchanges(case)
        if step is None or exchange is None:
            return None

        def call() -> None:
            step.call()
            host.Barrier()
            exchange.call()
            host.Barrier()

        return Way(call, exchange.wrong)

    return way
