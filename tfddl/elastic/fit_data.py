"""The data of a `fit` that goes on in the middle of an epoch: which batches are left, and how far the epoch is done."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.data.arrays import whole_of
from tfddl.data.py_dataset import PyDataset, ShardedPyDataset
from tfddl.data.rows import RowsDataset
from tfddl.keras.distributed import patches
from tfddl.keras.parallel.data_parallel import DataParallel
from tfddl.ops.objects import allgather_object
from tfddl.runtime import basics
from tfddl.runtime.agreement import by_rank, differ
from tfddl.runtime.log import warn


class FitData:
    """Data of which nothing is known: the epoch that goes on begins anew, with all of its batches.

    Args:
        warns_of: The name of the data in the warning; empty for no warning.

    Attributes:
        order: Determines the order of the epoch, where it is random.
        first_batch: The number of this rank's batches that `go_on` has left out.
    """

    order = 0
    first_batch = 0

    def __init__(self, warns_of: str = "") -> None:
        self.warns_of = warns_of

    def go_on(self, order: int, done: int) -> bool:
        """Leaves out what is done of the epoch that begins next.

        Args:
            order: The order of that epoch.
            done: What `done_after` has returned for it.

        Returns:
            Whether anything is left of the epoch.
        """
        return True

    def done_after(self, batches: int) -> int:
        """How far the epoch is done after so many batches of this rank, in a unit that does not depend on the size."""
        return 0

    def is_over_after(self, batches: int) -> bool:
        """Whether so many batches of this rank are all of the epoch, as far as it is known."""
        return False

    def shorten(self, iterator: Any) -> None:
        """Tells Keras' iterator over the batches how many the epoch has that begins now."""


class OrderedData(FitData):
    """Data whose order all ranks share: each row of an epoch counts once, for any number of ranks.

    Args:
        dataset: The dataset that `fit` gets.
    """

    def __init__(self, dataset: RowsDataset | ShardedPyDataset) -> None:
        super().__init__()
        self._dataset = dataset

    @property
    def order(self) -> int:  # type: ignore[override]
        return self._dataset.epoch

    def go_on(self, order: int, done: int) -> bool:
        self._dataset.epoch, self._dataset.start = order, 0
        whole = self._dataset.num_batches or 0
        self._dataset.start = done
        left = self._dataset.num_batches or 0
        self.first_batch = whole - left
        return left > 0

    def done_after(self, batches: int) -> int:
        return self._dataset.done_after(batches)

    def is_over_after(self, batches: int) -> bool:
        return batches >= (self._dataset.num_batches or 0)

    def shorten(self, iterator: Any) -> None:
        iterator._num_batches = self._dataset.num_batches


class CountedData(FitData):
    """Data that is read batch after batch: as many batches are left out as there were, divided by the number of ranks.

    Args:
        ranks: How many ranks read batches of their own.
        skips: Whether the epoch begins with the same batches each time, so that they are to be skipped.
    """

    def __init__(self, ranks: int, skips: bool) -> None:
        super().__init__()
        self._ranks, self._skips = ranks, skips
        self._whole: tuple[Any, Any, Any] | None = None
        self._left: int | None = None

    def go_on(self, order: int, done: int) -> bool:
        self.first_batch = -(-done // self._ranks)
        return True

    def done_after(self, batches: int) -> int:
        return (self.first_batch + batches) * self._ranks

    def is_over_after(self, batches: int) -> bool:
        return self._left is not None and batches >= self._left

    def shorten(self, iterator: Any) -> None:
        if self._whole is not None:
            iterator.steps_per_epoch, iterator._num_batches, iterator._distributed_dataset = self._whole
            self._whole, self.first_batch = None, 0
        elif self.first_batch:
            self._whole = iterator.steps_per_epoch, iterator._num_batches, iterator._distributed_dataset
            steps, batches, dataset = self._whole
            count = steps or batches or _count(dataset, self.first_batch + 1)
            self.first_batch = max(min(self.first_batch, count - 1), 0)  # Keras needs a batch
            iterator.steps_per_epoch = steps and steps - self.first_batch
            iterator._num_batches = batches and batches - self.first_batch
            iterator._distributed_dataset = dataset.skip(self.first_batch) if self._skips else dataset
        self._left = iterator.steps_per_epoch or iterator._num_batches


def _count(dataset: Any, most: int) -> int:
    """The number of batches of a dataset that does not know it, or `most` if there are more."""
    return int(dataset.take(most).reduce(tf.constant(0), lambda count, _: count + 1))


_next: list[FitData] = []


def shorten_next(data: FitData) -> None:
    """The next epoch that begins is one of this data. Keras 3 only: Keras 2 begins each epoch anew."""
    if not _compat.is_keras_2():
        patches.prepare_epochs(_shorten)
        _next[:] = [data]


def _shorten(iterator: Any) -> None:
    if _next:
        _next.pop().shorten(iterator)


def take(arguments: dict[str, Any], seed: int) -> FitData:
    """Finds out what data `fit` gets, and replaces it where an order that all ranks share is possible. All ranks call it.

    Args:
        arguments: Those of `fit`; changed.
        seed: Of random orders.
    """
    if _compat.is_keras_2():
        return FitData()
    changed = dict(arguments)
    data = _take_alone(changed, seed)
    kinds = dict(enumerate(allgather_object(data.warns_of or type(data).__name__, name="elastic.data")))
    if differ(kinds):  # the ranks would commit at different batches
        data = FitData(by_rank(kinds))
    else:
        arguments.clear()
        arguments.update(changed)
    if data.warns_of:
        warn(
            "After a loss this fit would begin the epoch anew, so that some rows would count twice in the weights. Let fit "
            "have the NumPy arrays that hvd.data.shard returns, without a step in between, an hvd.data.ShardedPyDataset, "
            f"or a tf.data.Dataset. Received: {data.warns_of}"
        )
    return data


def _take_alone(arguments: dict[str, Any], seed: int) -> FitData:
    """Does what `take` does, as if the other ranks had the same data."""
    data = arguments.get("x")
    # Under DataParallel each rank builds the batches of all.
    share = (0, 1) if DataParallel.divides() else (basics.rank(), basics.size())
    if arguments.get("steps_per_epoch") is not None:
        return CountedData(share[1], skips=False)
    if isinstance(data, tf.data.Dataset):
        return CountedData(share[1], skips=True)
    if isinstance(data, PyDataset):
        return _of_py_dataset(data, arguments, seed)
    return _of_arrays(arguments, seed, share)


def _of_py_dataset(data: Any, arguments: dict[str, Any], seed: int) -> FitData:
    if data.num_batches is None:
        return FitData()
    if not isinstance(data, ShardedPyDataset):
        if basics.size() > 1 and not DataParallel.divides():
            return FitData("a PyDataset that is not an hvd.data.ShardedPyDataset")
        shuffle = bool(arguments.get("shuffle", True))
        data = arguments["x"] = ShardedPyDataset(data, shuffle=shuffle, seed=seed, rank=0, size=1)
    arguments["shuffle"] = False  # of this rank's batches, in an order of its own
    return OrderedData(data)


def _of_arrays(arguments: dict[str, Any], seed: int, share: tuple[int, int]) -> FitData:
    given = [arguments.get(name) for name in ("x", "y", "sample_weight")]
    parts = [_as_tuples(each) for each in given if each is not None]
    leaves = tf.nest.flatten(parts)
    if (given[1] is None and given[2] is not None) or not leaves:
        return FitData()
    if not all(isinstance(leaf, (np.ndarray, tf.Tensor)) for leaf in leaves):
        return FitData("a generator, or another object without a known order")
    wholes = [np.asarray(leaf) if share[1] == 1 else whole_of(leaf, share) for leaf in leaves]
    if any(whole is None for whole in wholes):
        return FitData("other arrays")
    rows = {len(whole) for whole in wholes}
    if len(rows) > 1 or 0 in rows or any(whole.dtype.kind in "OSU" for whole in wholes):
        return FitData()  # Keras has the words for errors in them
    split = arguments.get("validation_split") if arguments.get("validation_data") is None else None
    trained = int(len(wholes[0]) * (1.0 - (split or 0.0)))
    if 0 < len(wholes[0]) - trained < share[1]:
        return FitData()  # a rank would have no row for its validation
    parts = tf.nest.pack_sequence_as(parts, wholes)
    batch = arguments.pop("batch_size", None) or 32
    arguments["validation_batch_size"] = arguments.get("validation_batch_size") or batch
    shuffle = bool(arguments.get("shuffle", True))
    if split:
        rank, size = share
        arguments["validation_data"] = tuple(
            tf.nest.map_structure(lambda array: array[trained:][rank::size], parts)
        )
        parts = tf.nest.map_structure(lambda array: array[:trained], parts)
        arguments["validation_split"] = 0.0
    dataset = RowsDataset(parts, batch_size=batch, shuffle=shuffle, seed=seed, rank=share[0], size=share[1])
    arguments.update(x=dataset, y=None, sample_weight=None, shuffle=False)
    return OrderedData(dataset)


def _as_tuples(data: Any) -> Any:
    """The same without lists, which tf.data takes for tensors."""
    if isinstance(data, dict):
        return {name: _as_tuples(each) for name, each in data.items()}
    return tuple(map(_as_tuples, data)) if isinstance(data, (list, tuple)) else data
