"""PyTorch's gloo: collectives on tensors; gradients through `DistributedDataParallel`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tfddl.bench.adapters import Process, Way, Ways
from tfddl.bench.case import Case, count_wrong


def ways(process: Process) -> Ways:
    """Joins a job of torch.distributed."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{process.addresses[0]}", rank=process.rank, world_size=process.size
    )

    def way(case: Case) -> Way:
        if case.operation == "gradients":
            return _gradients(case, process.rank)
        x, expected = torch.from_numpy(case.values(process.rank)), case.expected(process.rank)
        result = torch.from_numpy(expected.copy() * 0)
        calls: dict[str, Callable[[], object]] = {
            # gloo reduces in place: without the copy the sums would grow from call to call.
            "allreduce": lambda: dist.all_reduce(result.copy_(x)),
            "chain": lambda: [dist.all_reduce(result.copy_(x)) for _ in range(case.links)],
            "broadcast": lambda: dist.broadcast(x if process.rank == 0 else result, 0),
            "allgather": lambda: dist.all_gather_into_tensor(result, x),
        }
        given = x if case.operation == "broadcast" and process.rank == 0 else result
        return Way(calls[case.operation], lambda: count_wrong(given.numpy(), expected))

    return way


class _Weights(torch.nn.Module):
    """A module whose gradients have `scale` in all elements."""

    def __init__(self, shapes: list[tuple[int, ...]]):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.zeros(shape) for shape in shapes])

    def forward(self, scale: Any) -> Any:
        return scale * sum(weight.sum() for weight in self.weights)


def _gradients(case: Case, rank: int) -> Way:
    model = torch.nn.parallel.DistributedDataParallel(_Weights(case.shapes))
    scale = torch.tensor(case.scale(rank))

    def call() -> None:
        model.zero_grad(set_to_none=True)
        model(scale).backward()

    def wrong() -> int:
        averaged: list[Any] = [weight.grad for weight in model.parameters()]
        return sum(count_wrong(gradient.numpy(), case.mean) for gradient in averaged)

    return Way(call, wrong)
