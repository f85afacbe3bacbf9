"""Plain MPI through mpi4py: from one NumPy array into another, gradients one after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from tfddl.bench.adapters import Process, Way, Ways
from tfddl.bench.case import REDUCED, Case, count_wrong


def ways(process: Process) -> Ways:
    """Uses MPI.COMM_WORLD."""
    world = MPI.COMM_WORLD

    def way(case: Case) -> Way | None:
        if case.operation == "gradients":
            return _each(case, process.rank, world)
        if case.operation in REDUCED and case.dtype == "float16":
            return None  # MPI has no such type
        expected = case.expected(process.rank)
        x, result = case.values(process.rank), np.empty_like(expected)
        root = x if process.rank == 0 else result

        def chain() -> None:
            for _ in range(case.links):
                world.Allreduce(x, result)

        calls: dict[str, Callable[[], None]] = {
            "allreduce": lambda: world.Allreduce(x, result),
            "chain": chain,
            "broadcast": lambda: world.Bcast(_bytes(root)),
            "allgather": lambda: world.Allgather(_bytes(x), _bytes(result)),
            "reducescatter": lambda: world.Reduce_scatter_block(x, result),
            "alltoall": lambda: world.Alltoall(_bytes(x), _bytes(result)),
        }
        given = root if case.operation == "broadcast" else result
        return Way(calls[case.operation], lambda: count_wrong(given, expected))

    return way


def _bytes(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint8)


def _each(case: Case, rank: int, world: MPI.Intracomm) -> Way:
    inputs = [np.full(shape, case.scale(rank), "float32") for shape in case.shapes]
    results = [np.empty_like(x) for x in inputs]

    def call() -> None:
        for x, result in zip(inputs, results, strict=True):
            world.Allreduce(x, result)

    total = case.mean * case.ranks
    return Way(call, lambda: sum(count_wrong(result, total) for result in results))
