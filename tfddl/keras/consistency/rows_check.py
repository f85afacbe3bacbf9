"""Checks that all ranks have given hvd.data.shard the same rows in the same order; else shards overlap and miss rows."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfddl.ops.exchange import differing, differing_lists
from tfddl.runtime.agreement import by_rank
from tfddl.runtime.log import warn_once
from tfddl.runtime.process_sets import ProcessSet, members

_COUNT = 16  # of rows, and of values in each
_MOST_CALLS = 100  # a program may call shard in each step

_noted: list[tuple[tuple[int, ...], list["_Sample"]]] = []
_of_fit: list["_Sample"] = []


class _Sample(NamedTuple):
    """Values of some rows: float64 or texts."""

    shape: tuple[int, ...]
    rows: np.ndarray
    values: np.ndarray

    def line(self) -> str:
        return f"{self.shape} {self.values.tolist()}"

    def unlike(self, other: "_Sample") -> int | None:
        """The place of the first row that differs; None if the arrays are alike: not all GPUs compute the same last bits."""
        if self.shape != other.shape or self.values.dtype.kind != other.values.dtype.kind:
            return 0
        different = self.values != other.values
        if self.values.dtype.kind == "f":
            mine, others = (np.nan_to_num(each.values, posinf=0, neginf=0) for each in (self, other))
            tolerance = 1e-3 * np.abs(mine).max(axis=0) + 1e-2 * np.ptp(mine, axis=0)
            different = np.abs(mine - others) > tolerance
        places = np.flatnonzero(different.any(axis=1))
        return int(places[0]) if len(places) else None

    def shown(self, place: int) -> str:
        return f"shape {self.shape}, row {self.rows[place]} with {str(self.values[place][:3].tolist())[:80]}"


def pipeline(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """The dataset and all datasets that it is made from. No public API shows seeds, files, shards or rows."""
    yield dataset
    for source in dataset._inputs():
        yield from pipeline(source)


def samples_in(dataset: tf.data.Dataset) -> list[list[_Sample]]:
    """A few values of the arrays of each `from_tensor_slices` in a dataset."""
    return [
        samples_of(step._tensors)
        for step in pipeline(dataset)
        if type(step).__name__ == "_TensorSliceDataset"
    ]


def note(arrays: Iterable[Any], process_set: ProcessSet) -> None:
    """Notes a few values of the arrays that this rank shards, for `check_noted`."""
    ranks = tuple(members(process_set))
    if len(ranks) > 1 and len(_noted) < _MOST_CALLS:
        _noted.append((ranks, samples_of(arrays)))


def check_noted(name: str, process_set: ProcessSet) -> None:
    """Compares what the ranks have noted since the last call. All ranks call it.

    Sharding arrays is no collective: if the ranks have noted different numbers of calls, nothing is compared.

    Args:
        name: Names the collectives.
        process_set: The ranks that train.

    Raises:
        ValueError: On every rank, if rows differ.
    """
    ranks = tuple(members(process_set))
    calls = [samples for noted, samples in _noted if noted == ranks]
    _noted[:] = [each for each in _noted if each[0] != ranks]
    check_samples(calls, name, process_set)


def check_samples(calls: list[list[_Sample]], name: str, process_set: ProcessSet) -> None:
    """Compares samples of arrays; see `check_noted`."""
    lines = [f"{number}. {sample.line()}" for number, call in enumerate(calls) for sample in call]
    found = None if process_set.size() == 1 else differing(lines, calls, name, process_set)
    if found is None or len({tuple(map(len, calls)) for calls in found.values()}) > 1:
        return
    flat = {rank: [sample for call in calls for sample in call] for rank, calls in found.items()}
    for arrays in zip(*flat.values(), strict=True):
        places = [arrays[0].unlike(other) for other in arrays]
        place = next((each for each in places if each is not None), None)
        if place is not None:
            shown = {rank: each.shown(place) for rank, each in zip(flat, arrays, strict=True)}
            raise ValueError(
                "hvd.data.shard needs the same rows, in the same order, on all ranks, or shards overlap: permute and split "
                "with one seed on all ranks, as np.random.default_rng(seed).permutation(n) does, since "
                "keras.utils.set_random_seed may be called with another seed on each rank. If rows differ on purpose, pass "
                f"rank=hvd.rank() and size=hvd.size(): then nothing is compared. Received: {by_rank(shown)}"
            )


def note_fit(arguments: Mapping[str, Any]) -> None:
    """Notes a few values of the arrays that `fit` goes through once in each epoch, for `warn_of_same`."""
    arrays = tf.nest.flatten(arguments.get("x"))
    dense = all(isinstance(each, (np.ndarray, tf.Tensor)) and len(each.shape) > 0 for each in arrays)
    _of_fit[:] = samples_of(arrays) if dense and arguments.get("steps_per_epoch") is None else []


def warn_of_same(name: str, process_set: ProcessSet) -> None:
    """Warns if `fit` trains on the same rows on all ranks. All ranks call it.

    Args:
        name: Names the collectives.
        process_set: The ranks that train.
    """
    lines = [sample.line() for sample in _of_fit]
    _of_fit.clear()
    if process_set.size() != 1 and differing_lists(lines, name, process_set) is None and lines:
        warn_once(
            f"fit trains on the same rows on all ranks, so that each epoch has every row {process_set.size()} times: "
            "write x, y = hvd.data.shard(x, y); or, if each rank is to see all rows, divide the epochs by hvd.size().",
            process_set,
        )


def samples_of(arrays: Iterable[Any]) -> list[_Sample]:
    """Samples of those arrays whose rows cost little to read, with the same rows and values on all ranks."""
    return [sample for array in arrays if (sample := _sample(array)) is not None]


def _sample(array: Any) -> _Sample | None:
    shape = tuple(array.shape) if hasattr(array, "shape") else (len(array),)
    rows = np.linspace(0, shape[0] - 1, min(shape[0], _COUNT)).astype(int)
    if isinstance(array, (list, tuple)):
        try:
            listed = _sample(np.asarray([array[row] for row in rows]))
        except ValueError:  # rows of different lengths
            return None
        return listed and _Sample((*shape, *listed.shape[1:]), rows, listed.values)
    if hasattr(array, "tocsr"):
        return _Sample(shape, rows, np.asarray(array[rows].sum(axis=1), np.float64).reshape(-1, 1))
    size = int(np.prod(shape[1:]))
    if not len(rows) or not size:
        return None
    columns = np.linspace(0, size - 1, min(size, _COUNT)).astype(int)
    places = np.broadcast_arrays(rows[:, None], *np.unravel_index(columns, shape[1:] or (1,)))[: len(shape)]
    if isinstance(array, np.ndarray):
        values = _comparable(np.asarray(array[tuple(places)]))
    elif tf.executing_eagerly() and isinstance(array, tf.Tensor) and array.dtype != tf.variant:
        values = _comparable(tf.gather_nd(array, np.stack(places, axis=-1)).numpy())
    else:
        return None
    return None if values is None else _Sample(shape, rows, values)


def _comparable(values: np.ndarray) -> np.ndarray | None:
    kind = values.dtype.kind
    if kind == "f" or values.dtype == tf.bfloat16.as_numpy_dtype:
        return values.astype(np.float64)
    if kind in "biuMm":
        return values.astype(str)
    return np.array([list(map(_text, row)) for row in values.tolist()]) if kind in "OSU" else None


def _text(value: Any) -> str:
    """The text of a name or number; of the path of a file its last part, since hosts may have other folders."""
    if isinstance(value, (str, bytes, int)):
        return str(value.decode(errors="replace") if isinstance(value, bytes) else value).rpartition("/")[2]
    return type(value).__name__
