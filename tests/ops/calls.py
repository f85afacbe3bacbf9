"""Random collectives with their NumPy models, for test_programs.py.

A call knows what a rank brings, how it is made, and what must come of it. Models take the parts of those who take part and
the place of this rank among them: a subset of the ranks is modelled by fewer parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tests.ops.support import numpy_type
from tests.ops.test_adasum import adasum
from tfddl.ops.constants import Adasum, Average, Max, Min, Product, Sum
from tfddl.ops.support_table import COMPLEX, DTYPES, FLOATS, INTEGERS, REDUCTIONS, SCATTERED

Arrays = list[np.ndarray]
FUNCTIONS = {Average: np.add, Sum: np.add, Product: np.multiply, Min: np.minimum, Max: np.maximum}
TOLERANCE = {"float16": 4e-3, "bfloat16": 2e-2, "float32": 2e-6, "complex64": 2e-6}


def values(key: Sequence[int], dtype: str, shape: Sequence[int], whole_range: bool = False) -> np.ndarray:
    """Small whole numbers, whose sums and products are exact; or of an integer type all that it holds."""
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
    parts: Arrays, op: int, prescale: float = 1, postscale: float = 1, whole_range: bool = False
) -> np.ndarray:
    """What the reduction of one tensor has to be; small numbers fit int64 or float64, others wrap as NumPy's do."""
    own = parts[0].dtype
    if op == Adasum:
        return adasum(parts)
    if own.kind == "b" or (whole_range and op != Average and own.kind in "iu"):
        return FUNCTIONS[op].reduce(np.stack(parts), axis=0, dtype=own)
    wide = "complex128" if own.kind == "c" else "int64" if own.kind in "iu" else "float64"
    total = FUNCTIONS[op].reduce(
        np.stack([scaled(part.astype(wide), prescale, own.name) for part in parts]), axis=0
    )
    factor = postscale / len(parts) if op == Average else postscale
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
class Call:
    """A collective.

    Attributes:
        seed: Of the values.
    """

    seed: int
    equal = True
    """Whether all ranks get the same bits."""

    def bring(self, rank: int, size: int, turn: int) -> Arrays:
        """The inputs of `rank`, of `size` that take part; new ones each turn."""
        raise NotImplementedError

    def make(self, hvd: Any, inputs: list[tf.Tensor], name: str | None) -> list[tf.Tensor]:
        """Makes the call; returns the results without Nones."""
        raise NotImplementedError

    def model(self, parts: list[Arrays], place: int) -> Arrays:
        """What the rank at `place` gets when rank i brings parts[i]."""
        raise NotImplementedError

    def check(self, results: Arrays, parts: list[Arrays], place: int) -> None:
        for result, expected in zip(results, self.model(parts, place), strict=True):
            same(result, expected)


@dataclasses.dataclass(frozen=True)
class Group(Call):
    """A call with one or several tensors; None in the list of members stays None."""

    members: tuple[tuple[str, tuple[int, ...]] | None, ...]
    whole_range: bool

    def bring(self, rank: int, size: int, turn: int) -> Arrays:
        present = [(i, member) for i, member in enumerate(self.members) if member]
        return [values((self.seed, turn, i, rank), *member, self.whole_range) for i, member in present]

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

    def make(self, hvd, inputs, name):
        factors = dict(zip(("prescale_factor", "postscale_factor"), self.factors, strict=True))
        return self.apply(hvd, "allreduce", inputs, op=self.op, name=name, **factors)

    def model(self, parts, place):
        return [
            reduced(list(tensor), self.op, *self.factors, self.whole_range)
            for tensor in zip(*parts, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class Reducescatter(Allreduce):
    equal = False

    def make(self, hvd, inputs, name):
        factors = dict(zip(("prescale_factor", "postscale_factor"), self.factors, strict=True))
        return self.apply(hvd, "reducescatter", inputs, op=self.op, name=name, **factors)

    def model(self, parts, place):
        return [np.array_split(whole, len(parts))[place] for whole in super().model(parts, place)]


@dataclasses.dataclass(frozen=True)
class Allgather(Group):
    def bring(self, rank, size, turn):
        """Rank r brings the first dimension plus or minus a few rows."""
        arrays = super().bring(rank, size, turn)
        return [x[: max(0, len(x) - (self.seed + rank * (i + 1)) % 3)] for i, x in enumerate(arrays)]

    def make(self, hvd, inputs, name):
        return self.apply(hvd, "allgather", inputs, name=name)

    def model(self, parts, place):
        return [np.concatenate(tensor) for tensor in zip(*parts, strict=True)]


@dataclasses.dataclass(frozen=True)
class Broadcast(Group):
    root: int

    def make(self, hvd, inputs, name):
        return [hvd.broadcast(inputs[0], self.root % hvd.size(), name=name)]

    def model(self, parts, place):
        return parts[self.root % len(parts)]


@dataclasses.dataclass(frozen=True)
class Alltoall(Call):
    """Rank r sends splits[r, p] rows to rank p and keeps `rest` rows; or equally many to all."""

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

    def bring(self, rank, size, turn):
        splits = self.splits(size)[rank]
        rows = splits.sum() + (self.rest if self.given else 0)
        x = values((self.seed, turn, rank), self.dtype, (rows, *self.row))
        return [x, splits.astype("int32")] if self.given else [x]

    def make(self, hvd, inputs, name):
        return list(hvd.alltoall(*inputs, name=name)) if self.given else [hvd.alltoall(*inputs, name=name)]

    def model(self, parts, place):
        splits = self.splits(len(parts))
        ends = splits.cumsum(axis=1)[:, place]
        rows = [x[end - n : end] for (x, *_), n, end in zip(parts, splits[:, place], ends, strict=True)]
        return [np.concatenate(rows), splits[:, place].astype("int32")][: 2 if self.given else 1]


@dataclasses.dataclass(frozen=True)
class Slices(Call):
    """allreduce of a tf.IndexedSlices of a table with 6 rows."""

    dtype: str
    width: int
    op: int

    def bring(self, rank, size, turn):
        generator = np.random.default_rng([self.seed, turn, rank])
        indices = generator.integers(0, 6, generator.integers(0, 5))
        return [values((self.seed, turn, rank), self.dtype, (len(indices), self.width)), indices]

    def make(self, hvd, inputs, name):
        rows = tf.IndexedSlices(*inputs, tf.constant([6, self.width]))
        result = hvd.allreduce(rows, op=self.op, name=name)
        return [result.values, result.indices]

    def model(self, parts, place):
        wide = "int64" if self.dtype in INTEGERS else "float64"
        tables = []
        for rows, indices in parts:
            tables.append(np.zeros((6, self.width), wide))
            np.add.at(tables[-1], indices, rows.astype(wide))
        total = sum(tables) / (len(parts) if self.op == Average else 1)
        return [(np.trunc(total) if self.dtype in INTEGERS else total).astype(numpy_type(self.dtype))]

    def check(self, results, parts, place):
        rows, indices = map(np.asarray, results)
        assert sorted(indices) == sorted(set(np.concatenate([part[1] for part in parts]))), indices
        table = np.zeros((6, self.width), rows.dtype)
        table[indices] = rows
        same(table, self.model(parts, place)[0])


@dataclasses.dataclass(frozen=True)
class Barrier(Call):
    def bring(self, rank, size, turn):
        return []

    def make(self, hvd, inputs, name):
        operation = hvd.barrier(name=name)
        with tf.control_dependencies([] if operation is None else [operation]):
            return [tf.constant(1)]

    def model(self, parts, place):
        return [np.array(1, "int32")]


seeds = st.integers(0, 2**20)
small_shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
shapes = st.one_of(small_shapes, small_shapes, st.sampled_from([(70_001,), (3, 20_011)]))
row_shapes = shapes.filter(len)


@st.composite
def reductions(draw: Any, kind: type[Allreduce]) -> Allreduce:
    op = draw(st.sampled_from(SCATTERED if kind is Reducescatter else tuple(REDUCTIONS)))
    factors = draw(st.sampled_from([(1.0, 1.0), (1.0, 1.0), (0.5, 1.0), (1.0, 3.0), (2.0, 0.5), (-1.5, 2.0)]))
    dtypes = [dtype for dtype in REDUCTIONS[op] if factors == (1.0, 1.0) or dtype != "bool"]
    if op == Adasum:
        factors = (1.0, 1.0)
    tensor = st.tuples(st.sampled_from(dtypes), row_shapes if kind is Reducescatter else shapes)
    members = draw(members_of(tensor))
    # Factors and the average of 64 bits are exact for small numbers only.
    whole_range = factors == (1.0, 1.0) and not (op == Average and any("64" in m[0] for m in members if m))
    return kind(draw(seeds), members, draw(st.booleans()) and whole_range, op, factors)


def members_of(tensor: st.SearchStrategy) -> st.SearchStrategy:
    several = st.lists(st.one_of(tensor, tensor, st.none()), min_size=2, max_size=4)
    return st.one_of(st.tuples(tensor), several.map(tuple).filter(any))


calls = st.one_of(
    reductions(Allreduce),
    reductions(Allreduce),
    reductions(Reducescatter),
    st.builds(Allgather, seeds, members_of(st.tuples(st.sampled_from(DTYPES), row_shapes)), st.booleans()),
    st.builds(
        Broadcast,
        seeds,
        st.tuples(st.tuples(st.sampled_from(DTYPES), shapes)),
        st.booleans(),
        st.integers(0, 5),
    ),
    st.builds(Alltoall, seeds, st.sampled_from(DTYPES), small_shapes, st.booleans(), st.integers(0, 2)),
    st.builds(
        Slices, seeds, st.sampled_from(FLOATS + INTEGERS), st.integers(1, 3), st.sampled_from([Average, Sum])
    ),
    st.builds(Barrier, seeds),
)
