"""A case: one operation on one size and dtype, with inputs that have one right result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cached_property

import numpy as np

from tfddl.bench.gradient_sets import MODELS, SETS, Shape, floats

BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "chain": lambda n: 2 * (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "allgather": lambda n: (n - 1) / n,
    "reducescatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "gradients": lambda n: 2 * (n - 1) / n,
    "training": lambda n: 2 * (n - 1) / n,
}
"""busbw / algbw by operation: the share of the data that each of n ranks must send at least (nccl-tests, PERFORMANCE.md)."""

REDUCED = ("allreduce", "chain", "reducescatter")


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        operation: A key of `BUS_FACTORS`.
        ranks: Number of ranks.
        count: Elements, as nccl-tests counts them: of the result of an allgather, else of the input of a rank.
        dtype: NumPy's name of the dtype.
        set: For "gradients" the name of the set of gradients, for "training" the name of the model.
        batch: For "training": images of a rank in a step.
        steps: For "training": calls in a block. 0 leaves the number to the size.
    """

    operation: str
    ranks: int
    count: int
    dtype: str = "float32"
    set: str = ""
    batch: int = 0
    steps: int = 0

    @property
    def bytes(self) -> int:
        """Size of all elements, in bytes."""
        return self.count * np.dtype(self.dtype).itemsize

    @property
    def links(self) -> int:
        """The number of collectives in a call."""
        return 100 if self.operation == "chain" else 1

    @property
    def redop(self) -> str:
        """The reduction: "mean", "sum" or "none"."""
        if self.operation in ("gradients", "training"):
            return "mean"
        return "sum" if self.operation in REDUCED else "none"

    @property
    def shapes(self) -> list[Shape]:
        """Shapes of the gradients."""
        return SETS[self.set]()

    def values(self, rank: int) -> np.ndarray:
        """The input of a rank: [count], for an allgather [count / ranks].

        Whole numbers, so small that even a sum of the sums of all ranks is exact.
        """
        exact = {"float16": 1 << 11, "float32": 1 << 24}.get(self.dtype, 1 << 31)
        modulus = max(2, min(251, exact // self.ranks**2))
        pattern = (np.arange(modulus) + 7 * rank) % modulus
        count = self.count // self.ranks if self.operation == "allgather" else self.count
        return np.resize(pattern.astype(self.dtype), count)

    def expected(self, rank: int) -> np.ndarray:
        """The right result on a rank."""
        if self.operation == "broadcast":
            return self.values(0)
        all_ = (self.values(peer) for peer in range(self.ranks))
        if self.operation == "allgather":
            return np.concatenate(list(all_))
        mine = slice(rank * self.count // self.ranks, (rank + 1) * self.count // self.ranks)
        if self.operation == "alltoall":
            return np.concatenate([values[mine] for values in all_])
        total = next(all_)
        for values in all_:
            total += values
        return total[mine] if self.operation == "reducescatter" else total

    def scale(self, rank: int) -> float:
        """The value of all elements of a rank's gradients. The mean over ranks is exact in float32."""
        return float(2 * rank * self.ranks + 1)

    @cached_property
    def mean(self) -> float:
        """The value of all elements of the averaged gradients."""
        return sum(self.scale(rank) for rank in range(self.ranks)) / self.ranks

    def floor_copies(self) -> float:
        """The least number of copies of the data that an allreduce inside one host takes on each rank.

        A rank copies (n-1)/n of its input to memory that the other ranks read. It reads its slice of all n inputs and
        writes the slice of the result to all n ranks. Together it reads and writes (2n-1)/n of the data. Inputs in shared
        memory need one copy only.
        """
        return 2 - 1 / self.ranks


def collective(operation: str, size: int, dtype: str, ranks: int) -> Case:
    """A case of about `size` bytes, rounded up to equal numbers of elements for all ranks."""
    count = max(1, size // np.dtype(dtype).itemsize)
    if operation not in ("allreduce", "chain", "broadcast"):
        count = math.ceil(count / ranks) * ranks
    return Case(operation, ranks, count, dtype)


def gradients(name: str, ranks: int) -> Case:
    """A case with a set of gradients."""
    return Case("gradients", ranks, floats(SETS[name]()), "float32", name)


def training(name: str, ranks: int, batch: int, steps: int) -> Case:
    """A case that trains a model."""
    return Case("training", ranks, MODELS[name], "float32", name, batch, steps)


def count_wrong(result: np.ndarray, expected: np.ndarray | float) -> int:
    """The number of elements that are not exactly as expected. If the shapes differ, all are wrong."""
    if np.ndim(expected) and np.shape(result) != np.shape(expected):
        return max(np.size(result), np.size(expected))
    return int(np.count_nonzero(result != expected))
