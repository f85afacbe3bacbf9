"""Plain MPI: all gradients are copied into one buffer, reduced by one Allreduce, and copied back."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from tfddl.bench.adapters import Process, Way, Ways
from tfddl.bench.case import Case, count_wrong


def ways(process: Process) -> Ways:
    """Uses MPI.COMM_WORLD."""

    def way(case: Case) -> Way:
        inputs = [np.full(shape, case.scale(process.rank), "float32").ravel() for shape in case.shapes]
        results = [np.empty_like(x) for x in inputs]
        packed = np.empty(case.count, "float32")
        reduced = np.empty_like(packed)
        starts = np.cumsum([0, *(x.size for x in inputs)])

        def call() -> None:
            np.concatenate(inputs, out=packed)
            MPI.COMM_WORLD.Allreduce(packed, reduced)
            for result, start in zip(results, starts, strict=False):
                result[:] = reduced[start : start + result.size]

        total = case.mean * case.ranks
        return Way(call, lambda: sum(count_wrong(result, total) for result in results))

    return way
