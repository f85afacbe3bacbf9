"""Collectives with their NumPy models, for the random programs of test_programs.py.

A call has the inputs of each participant, a way to make it, and a model of its results. A participant is the index of a rank
in the process set of the call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.ops.support import numpy_type
from tests.ops.test_adasum import adasum
from tfddl.ops.constants import Adasum, Average, Max, Min, Product, Sum
from tfddl.ops.dtypes import COMPLEX, INTEGERS

Arrays = list[np.ndarray]
Parts = Mapping[int, Arrays]
"""The inputs of each participant that has not joined."""
FUNCTIONS = {Average: np.add, Sum: np.add, Product: np.multiply, Min: np.minimum, Max: np.maximum}
TOLERANCE = {"float16": 4e-3, "bfloat16": 2e-2, "float32": 2e-6, "complex64": 2e-6}


def values(key: Sequence[int], dtype: str, shape: Sequence[int], whole_range: bool = False) -> np.ndarray:
    """Small whole numbers, whose sums and products are exact; or for an integer dtype numbers of its whole range."""
    generator = np.random.default_rng(list(key))
    if whole_range and dtype in INTEGERS:
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, tuple(shape), dtype, endpoint=True)
    low = 0 if dtype.startswith("u") or dtype == "bool" else -4
    numbers = generator.integers(low, 2 if dtype == "bool" else 5, tuple(shape))
    if dtype in COMPLEX:
        numbers = numbers + 1j * generator.integers(-4, 5, tuple(shape))
    return numbers.astype(numpy_type(dtype))


def scaled(x: np.ndarray, factor: float, dtype: str) -> np.ndarray:
    if dtype not in INTEGERS or factor == 1:
        return x * factor
    limits = np.iinfo(dtype)
    return np.clip(np.trunc(x * factor), limits.min, limits.max).astype("int64")


def reduced(
    parts: Arrays, divisor: int, op: int, prescale: float, postscale: float, whole_range: bool
) -> np.ndarray:
    """The result of a reduction. Small numbers are exact in int64 or float64; larger ones wrap as in NumPy."""
    own = parts[0].dtype
    if op == Adasum:
        return adasum(parts)
    if own.kind == "b" or (whole_range and op != Average and own.kind in "iu"):
        return FUNCTIONS[op].reduce(np.stack(parts), axis=0, dtype=own)
    wide = "complex128" if own.kind == "c" else "int64" if own.kind in "iu" else "float64"
    total = FUNCTIONS[op].reduce(
        np.stack([scaled(part.astype(wide), prescale, own.name) for part in parts]), axis=0
    )
    factor = postscale / divisor if op == Average else postscale
    return scaled(total, factor, own.name).astype(own)


def same(result: Any, expected: np.ndarray) -> None:
    result = np.asarray(result)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape), (result, expected)
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(result, expected)
    else:
        tolerance = TOLERANCE.get(expected.dtype.name, 1e-13)
        wide = "complex128" if expected.dtype.kind == "c" else "float64"
        np.testing.assert_allclose(result.astype(wide), expected.astype(wide), tolerance, tolerance)


@dataclasses.dataclass(frozen=True)
class Meeting:
    """The ranks that take part in a call.

    Attributes:
        ranks: The members of the process set.
        present: The participants that have not joined.
        average_over: What they have asked of `join`.
    """

    ranks: tuple[int, ...]
    present: tuple[int, ...]
    average_over: str

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def divisor(self) -> int:
        """The divisor of an Average."""
        return len(self.present) if self.average_over == "active" else self.size


@dataclasses.dataclass(frozen=True)
class Call:
    """A collective.

    Attributes:
        seed: Of the values.
    """

    seed: int
    equal = True
    """Whether all ranks get the same bits."""

    def bring(self, participant: int, size: int, turn: int) -> Arrays:
        """The inputs of one of `size` participants, which differ from turn to turn."""
        raise NotImplementedError

    def make(self, hvd: Any, process_set: Any, inputs: list[tf.Tensor], name: str | None) -> list[tf.Tensor]:
        """Makes the call, and returns the results that are not None."""
        raise NotImplementedError

    def refusal(self, meeting: Meeting) -> str:
        """A part of the error that all ranks get; empty if the call succeeds."""
        return ""

    def model(self, parts: Parts, participant: int, meeting: Meeting) -> Arrays:
        """The results of a participant."""
        raise NotImplementedError

    def check(self, results: Arrays, parts: Parts, participant: int, meeting: Meeting) -> None:
        for result, expected in zip(results, self.model(parts, participant, meeting), strict=True):
            same(result, expected)


@dataclasses.dataclass(frozen=True)
class Group(Call):
    """A call with one or several tensors; None in the list of members stays None."""

    members: tuple[tuple[str, tuple[int, ...]] | None, ...]
    whole_range: bool

    def bring(self, participant: int, size: int, turn: int) -> Arrays:
        given = [(i, member) for i, member in enumerate(self.members) if member]
        return [values((self.seed, turn, i, participant), *member, self.whole_range) for i, member in given]

    def apply(self, hvd: Any, kind: str, inputs: list[tf.Tensor], **options: Any) -> list[tf.Tensor]:
        if len(self.members) == 1:
            return [getattr(hvd, kind)(inputs[0], **options)]
        left = list(inputs)
        given = [None if member is None else left.pop(0) for member in self.members]
        results = getattr(hvd, f"grouped_{kind}")(given, **options)
        assert [result is None for result in results] == [member is None for member in self.members]
        return [result for result in results if result is not None]


@dataclasses.dataclass(frozen=True)
class Allreduce(Group):
    op: int
    factors: tuple[float, float]

    def options(self) -> dict[str, Any]:
        prescale, postscale = self.factors
        return {"op": self.op, "prescale_factor": prescale, "postscale_factor": postscale}

    def make(self, hvd, process_set, inputs, name):
        return self.apply(hvd, "allreduce", inputs, name=name, process_set=process_set, **self.options())

    def model(self, parts, participant, meeting):
        return [
            reduced(list(tensor), meeting.divisor, self.op, *self.factors, self.whole_range)
            for tensor in zip(*parts.values(), strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class Reducescatter(Allreduce):
    equal = False

    def make(self, hvd, process_set, inputs, name):
        return self.apply(hvd, "reducescatter", inputs, name=name, process_set=process_set, **self.options())

    def model(self, parts, participant, meeting):
        return [
            np.array_split(whole, meeting.size)[participant]
            for whole in super().model(parts, participant, meeting)
        ]


@dataclasses.dataclass(frozen=True)
class Allgather(Group):
    def bring(self, participant, size, turn):
        """The tensors of the base class, without up to two of their rows."""
        arrays = super().bring(participant, size, turn)
        return [x[: max(0, len(x) - (self.seed + participant * (i + 1)) % 3)] for i, x in enumerate(arrays)]

    def make(self, hvd, process_set, inputs, name):
        return self.apply(hvd, "allgather", inputs, name=name, process_set=process_set)

    def model(self, parts, participant, meeting):
        return [np.concatenate(tensor) for tensor in zip(*parts.values(), strict=True)]


@dataclasses.dataclass(frozen=True)
class Broadcast(Group):
    root: int

    def make(self, hvd, process_set, inputs, name):
        root = process_set.ranks[self.root % process_set.size()]
        return [hvd.broadcast(inputs[0], root, name=name, process_set=process_set)]

    def refusal(self, meeting):
        root = self.root % meeting.size
        return "" if root in meeting.present else f"root, rank {meeting.ranks[root]}, has joined"

    def model(self, parts, participant, meeting):
        return parts[self.root % meeting.size]


@dataclasses.dataclass(frozen=True)
class Alltoall(Call):
    """Participant r sends splits[r, p] rows to participant p and keeps `rest` rows; or sends equally many to all."""

    dtype: str
    row: tuple[int, ...]
    given: bool
    rest: int
    equal = False

    def splits(self, size: int) -> np.ndarray:
        generator = np.random.default_rng([self.seed, size])
        if self.given:
            return generator.integers(0, 4, (size, size))
        return np.repeat(generator.integers(0, 4, (size, 1)), size, axis=1)

    def bring(self, participant, size, turn):
        splits = self.splits(size)[participant]
        rows = splits.sum() + (self.rest if self.given else 0)
        x = values((self.seed, turn, participant), self.dtype, (rows, *self.row))
        return [x, splits.astype("int32")] if self.given else [x]

    def make(self, hvd, process_set, inputs, name):
        result = hvd.alltoall(*inputs, name=name, process_set=process_set)
        return list(result) if self.given else [result]

    def model(self, parts, participant, meeting):
        splits = self.splits(meeting.size)
        ends = splits.cumsum(axis=1)[:, participant]
        came = np.zeros(meeting.size, "int32")
        came[list(parts)] = splits[list(parts), participant]
        rows = np.concatenate(
            [x[ends[other] - came[other] : ends[other]] for other, (x, *_) in parts.items()]
        )
        return [rows, came] if self.given else [rows]


@dataclasses.dataclass(frozen=True)
class Slices(Call):
    """allreduce of a tf.IndexedSlices of a table with 6 rows."""

    dtype: str
    width: int
    op: int

    def bring(self, participant, size, turn):
        generator = np.random.default_rng([self.seed, turn, participant])
        indices = generator.integers(0, 6, generator.integers(0, 5))
        return [values((self.seed, turn, participant), self.dtype, (len(indices), self.width)), indices]

    def make(self, hvd, process_set, inputs, name):
        rows = tf.IndexedSlices(*inputs, tf.constant([6, self.width]))
        result = hvd.allreduce(rows, op=self.op, name=name, process_set=process_set)
        return [result.values, result.indices]

    def model(self, parts, participant, meeting):
        wide = "int64" if self.dtype in INTEGERS else "float64"
        tables = []
        for rows, indices in parts.values():
            tables.append(np.zeros((6, self.width), wide))
            np.add.at(tables[-1], indices, rows.astype(wide))
        total = sum(tables) / (meeting.divisor if self.op == Average else 1)
        return [(np.trunc(total) if self.dtype in INTEGERS else total).astype(numpy_type(self.dtype))]

    def check(self, results, parts, participant, meeting):
        rows, indices = map(np.asarray, results)
        assert sorted(indices) == sorted({*np.concatenate([part[1] for part in parts.values()])}), indices
        table = np.zeros((6, self.width), rows.dtype)
        table[indices] = rows
        same(table, self.model(parts, participant, meeting)[0])


@dataclasses.dataclass(frozen=True)
class Barrier(Call):
    def bring(self, participant, size, turn):
        return []

    def make(self, hvd, process_set, inputs, name):
        operation = hvd.barrier(name=name, process_set=process_set)
        with tf.control_dependencies([] if operation is None else [operation]):
            return [tf.constant(1)]

    def model(self, parts, participant, meeting):
        return [np.array(1, "int32")]
