"""shard: this rank's part of arrays, of a tf.data.Dataset or of a PyDataset."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.data.arrays import is_dict, is_scipy_sparse, shard_arrays
from tfddl.data.dataset import shard_dataset
from tfddl.data.py_dataset import ShardedPyDataset
from tfddl.runtime.job import current

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "tf.data.Dataset": shard_dataset,
    "PyDataset": ShardedPyDataset,
    "arrays": shard_arrays,
}


def shard(*data: Any, **options: Any) -> Any:
    """Deals data round-robin, in equal numbers, and returns this rank's shard. At most `size - 1` elements are left out.

        x, y = hvd.data.shard(x, y)
        inputs, y = hvd.data.shard({"image": images, "age": ages}, y)
        train = hvd.data.shard(dataset).shuffle(10_000).batch(32)

    A shuffle before `shard` draws a new order for each iterator, also with a seed. If one rank iterates once more than the
    others, such as to look at a batch, shards overlap without an error from then on: shard first, or use
    `shuffle(n, seed=..., reshuffle_each_iteration=False)`.

    Args:
        *data: One `tf.data.Dataset`, one `keras.utils.PyDataset`, or arrays with equally many rows: NumPy arrays, tensors,
            lists, sparse matrices of SciPy. Or dicts of arrays, also nested: the inputs of a Keras model by name.
        **options: Those of `shard_dataset`, `ShardedPyDataset` or `shard_arrays`. All take `process_set`, the ranks that
            share the data, or `rank` and `size`.

    Returns:
        Of a `tf.data.Dataset` a dataset of every `size`-th element, of a PyDataset a `ShardedPyDataset` of its batches, of
        arrays every `size`-th row: one array, or a tuple; of a dict a dict.

    Raises:
        TypeError: The data is nothing of these, or a dataset beside something else, or has no such option.
        ValueError: See `shard_dataset`, `ShardedPyDataset` and `shard_arrays`.

    Example:
        On 2 ranks:

        >>> hvd.allgather_object(hvd.data.shard([10, 20, 30, 40, 50]))
        [[10, 30], [20, 40]]
    """
    kinds = {"tf.data.Dataset": tf.data.Dataset, "PyDataset": _compat.py_dataset()}
    found = [name for each in data for name, kind in kinds.items() if isinstance(each, kind)]
    if found and len(data) > 1:
        raise TypeError(
            f"hvd.data.shard takes one {found[0]}, or arrays: call it once for each. Received: {_types(data)}"
        )
    if not found:
        for each in data:
            _check_array(each)
    kind = found[0] if found else "arrays"
    function = _FUNCTIONS[kind]
    parameters = inspect.signature(function).parameters.values()
    known = [each.name for each in parameters if each.default is not each.empty]
    if wrong := options.keys() - known:
        raise TypeError(
            f"hvd.data.shard of {kind} has no option {', '.join(sorted(wrong))}: use one of {', '.join(known)}. "
            f"Received: {options}"
        )
    if not options.keys() & {"rank", "size"}:
        current("data.shard")  # an error names this call
    return function(*data, **options)


def _check_array(value: Any) -> None:
    """Refuses what has a length, but no rows."""
    if is_scipy_sparse(value):
        return
    if is_dict(value):
        for each in value.values():
            _check_array(each)
        return
    if isinstance(value, (list, tuple)) and any(map(_has_rows, value)):
        raise TypeError(
            "hvd.data.shard takes arrays one by one, or in a dict: write x, y = hvd.data.shard(x, y), and numpy.stack(rows) "
            f"for a list of rows. Received: a {type(value).__name__} of {_types(value)}"
        )
    if isinstance(value, (str, bytes)) or not _is_sliceable(value):
        maker = "numpy.asarray"
        if isinstance(value, Iterator):
            maker = "tf.data.Dataset.from_generator"
        elif isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
            maker = "tf.data.Dataset.from_tensor_slices"
        raise TypeError(
            "hvd.data.shard takes a tf.data.Dataset, a keras.utils.PyDataset, or arrays with rows: "
            f"make one of these, as with {maker}. "
            f"Received: {_types([value])}"
        )


def _has_rows(value: Any) -> bool:
    # A row of a list may be a list of numbers, but no array, tensor or dataset.
    return isinstance(value, (tf.data.Dataset, _compat.py_dataset())) or bool(getattr(value, "shape", ()))


def _is_sliceable(value: Any) -> bool:
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and getattr(value, "shape", None) != ()


def _types(data: Iterable[Any]) -> str:
    return ", ".join(type(each).__name__ for each in data)
