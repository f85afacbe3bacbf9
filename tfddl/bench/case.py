"""What is measured: one operation on one size and dtype, with inputs that have one right result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cached_property

import numpy as np

from tfddl.bench.gradient_sets import MODELS, SETS, Shape, floats

BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "allgather": lambda n: (n - 1) / n,
    "reducescatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "gradients": lambda n: 2 * (n - 1) / n,
    "training": lambda n: 2 * (n - 1) / n,
}
"""Operations; busbw is algbw times this: what each of n ranks has to send at least, as nccl-tests counts it."""

REDUCED = ("allreduce", "reducescatter")
DTYPES = ("float16", "float32", "float64", "int32", "int64")


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        operation: A key of `BUS_FACTORS`.
        ranks: Number of ranks.
        count: Elements, as nccl-tests counts them: of the whole result of an allgather, else of what a rank gives.
        dtype: Name of NumPy's.
        set: Name of the set of gradients, for the operation "gradients"; of the model, for "training".
        batch: Images of a rank in a step, for "training".
        steps: Calls in a block, for "training"; 0 for as many as the size makes worth while.
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
        """Size of all elements."""
        return self.count * np.dtype(self.dtype).itemsize

    @property
    def redop(self) -> str:
        """How elements of several ranks become one."""
        if self.operation in ("gradients", "training"):
            return "mean"
        return "sum" if self.operation in REDUCED else "none"

    @property
    def shapes(self) -> list[Shape]:
        """Of the gradients."""
        return SETS[self.set]()

    def values(self, rank: int) -> np.ndarray:
        """What a rank gives, [count], of an allgather [count / ranks].

        Whole numbers so small that even the sum of the sums of all ranks is exact.
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
        """Every element of a rank's gradients: their mean over ranks is exact in float32."""
        return float(2 * rank * self.ranks + 1)

    @cached_property
    def mean(self) -> float:
        """Every element of the averaged gradients."""
        return sum(self.scale(rank) for rank in range(self.ranks)) / self.ranks

    def floor_copies(self) -> float:
        """How many copies of the data an allreduce inside one host has to be at least, on each rank.

        A rank copies the part of its input that others own to where they read it, (n-1)/n of it; reads its own slice
        of all n inputs, and writes that slice of the result to all n ranks: (2n-1)/n of the data read, and as much
        written. What lies in shared memory already needs no copy to get there: one copy.
        """
        return 2 - 1 / self.ranks


def collective(operation: str, size: int, dtype: str, ranks: int) -> Case:
    """The case of about `size` bytes whose elements can be shared out over all ranks."""
    count = max(1, size // np.dtype(dtype).itemsize)
    if operation not in ("allreduce", "broadcast"):
        count = math.ceil(count / ranks) * ranks
    return Case(operation, ranks, count, dtype)


def gradients(name: str, ranks: int) -> Case:
    """The case of a set of gradients."""
    return Case("gradients", ranks, floats(SETS[name]()), "float32", name)


def training(name: str, ranks: int, batch: int, steps: int) -> Case:
    """The case of a model."""
    return Case("training", ranks, MODELS[name], "float32", name, batch, steps)


def count_wrong(result: np.ndarray, expected: np.ndarray | float) -> int:
    """Elements that are not exactly what they should be; all of them where the shapes differ."""
    if np.ndim(expected) and np.shape(result) != np.shape(expected):
        return max(np.size(result), np.size(expected))
    return int(np.count_nonzero(result != expected))
