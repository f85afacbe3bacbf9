"""shard_arrays: this rank's rows of arrays in memory."""

import functools
import os
import weakref
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tfddl.data import shards
from tfddl.keras.consistency import rows_check
from tfddl.runtime.process_sets import ProcessSet, global_process_set

_COMMITS_VARIABLE = "TFDDL_COMMITS"  # of tfddlrun, whose modules lie above this one
_BLOCK_BYTES = 1 << 24
_READ_ONLY = -1  # no checksum

_wholes: dict[int, tuple[Any, tuple[int, int], int]] = {}


def shard_arrays(
    *arrays: Any,
    rank: int | None = None,
    size: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Takes every `size`-th row, beginning with row number `rank`; all ranks get the same number of rows.

    At most `size - 1` rows at the end are left out. NumPy arrays come back as views without a copy. Batch `i` of all ranks
    together holds the rows of batch `i` of the whole data, if that batch is `size` times as large.

        x, y = hvd.data.shard_arrays(x, y)

    All ranks need the same rows in the same order. When `fit` begins, `BroadcastGlobalVariablesCallback` compares a few of
    them, unless `rank` and `size` are given.

    Args:
        arrays: NumPy arrays, tensors, lists, sparse matrices of SciPy, or other objects with a length that can be sliced.
            All of one length. Or dicts of arrays, also nested: the inputs of a Keras model by name.
        rank: The index of the shard. Defaults to `hvd.rank()`.
        size: The number of shards. Defaults to `hvd.size()`; goes together with `rank`.
        process_set: The ranks that share the data, if `rank` and `size` are not given. Defaults to all.

    Returns:
        The shard of the array, or a tuple of shards if there are several arrays; of a dict a dict of shards. The shard of a
        sparse matrix is a copy in SciPy's CSR format.

    Raises:
        ValueError: No array is given, the arrays differ in length, or there are fewer rows than ranks.

    Example:
        On 2 ranks:

        >>> x, y = hvd.data.shard_arrays(np.arange(4), np.arange(4) ** 2)
        >>> hvd.allgather_object(y.tolist())
        [[0, 4], [1, 9]]
    """
    whole_job = rank is None
    rank, size = shards.resolve(rank, size, process_set, "data.shard_arrays")
    given = arrays
    arrays = tuple(array.tocsr() if is_scipy_sparse(array) else array for array in _leaves(given))
    lengths = [array.shape[0] if is_scipy_sparse(array) else len(array) for array in arrays]
    if len(set(lengths)) != 1:
        raise ValueError(
            "hvd.data.shard takes arrays with equally many rows, at least one array: pass x and y of the same samples. "
            f"Received: {', '.join(map(str, lengths)) or 'no array'}" + " rows" * bool(lengths)
        )
    end = shards.shard_size(lengths[0], size, "drop", "rows") * size
    if whole_job:
        rows_check.note(arrays, process_set)
    parts = tuple(array[rank:end:size] for array in arrays)
    for part, array in zip(parts, arrays, strict=True):
        # In an elastic job: only ElasticCallback needs the whole array.
        if isinstance(part, np.ndarray) and os.environ.get(_COMMITS_VARIABLE):
            _remember(part, array, (rank, size))
    remaining = iter(parts)
    results = tuple(_filled(each, remaining) for each in given)
    return results if len(results) > 1 else results[0]


def is_dict(value: Any) -> bool:
    """Whether this is a dict of arrays. SciPy's DOK format is a dict too."""
    return isinstance(value, dict) and not is_scipy_sparse(value)


def is_scipy_sparse(value: Any) -> bool:
    """Whether this is a sparse matrix or array of SciPy. Only some formats can be sliced, and none has a length."""
    return type(value).__module__.startswith("scipy.sparse") and hasattr(value, "tocsr")


def whole_of(part: Any, share: tuple[int, int]) -> Any:
    """The array of which `shard_arrays` has taken this part; None if `part` is something else, or has been changed.

    Args:
        part: Perhaps a NumPy array that `shard_arrays` has returned.
        share: The rank and the size that it has taken the part for.
    """
    whole, found, checksum = _wholes.get(id(part), (None, None, None))
    return whole if found == share and checksum == _checksum(part) else None


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """The arrays, also those in dicts."""
    for value in values:
        yield from _leaves(value.values()) if is_dict(value) else [value]


def _filled(value: Any, parts: Iterator[Any]) -> Any:
    """The next part; for a dict a dict with the same keys and the next parts."""
    return {key: _filled(each, parts) for key, each in value.items()} if is_dict(value) else next(parts)


def _remember(part: np.ndarray, whole: np.ndarray, share: tuple[int, int]) -> None:
    """Remembers the whole array as long as the part, a view that keeps its memory, lives."""
    _wholes[id(part)] = whole, share, _checksum(part)
    weakref.finalize(part, _wholes.pop, id(part), None)


def _checksum(part: np.ndarray) -> int:
    """A checksum of all rows. If a program changes its part in place, the whole array no longer fits.

    The function reads no row of a part that cannot be changed, such as a file that is mapped into memory.
    """
    if not part.flags.writeable:
        return _READ_ONLY
    rows = max(1, _BLOCK_BYTES * len(part) // max(1, part.nbytes))  # `tobytes` copies them
    return functools.reduce(
        lambda checksum, first: zlib.crc32(part[first : first + rows].tobytes(), checksum),
        range(0, len(part), rows),
        0,
    )
