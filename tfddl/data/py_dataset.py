"""ShardedPyDataset: this rank's batches of a keras.utils.PyDataset."""

import threading
from typing import Any

import numpy as np

from tfddl import _compat
from tfddl.data import shards
from tfddl.runtime.process_sets import ProcessSet, global_process_set

PyDataset: Any = _compat.py_dataset()


class EpochDataset(PyDataset):
    """A dataset that counts its epochs, and may begin one in the middle.

    Attributes:
        epoch: The epoch that determines the order; `on_epoch_end` adds one.
        start: How much of this epoch has been trained on before. `on_epoch_end` sets it to 0.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.epoch = self.start = 0
        self._within_epoch = False
        self._thread = threading.get_ident()

    def on_epoch_begin(self) -> None:
        """Notes it."""
        self._within_epoch = True

    def on_epoch_end(self) -> None:
        """The next epoch has an order of its own, and begins with its first row."""
        if not self._of_training():
            return
        # Keras also calls this before training if the model is not built yet: that call ends no epoch.
        if self._within_epoch or not _compat.tells_epoch_begin():
            self.epoch, self.start = self.epoch + 1, 0
        self._within_epoch = False

    def _of_training(self) -> bool:
        """Whether the caller trains. Before Keras 3.5 a daemon thread, which fetches batches, ends some epochs as well."""
        fetches = threading.current_thread().daemon and threading.get_ident() != self._thread
        return _compat.tells_epoch_begin() or not fetches


class ShardedPyDataset(EpochDataset):
    """Deals the batches of a `keras.utils.PyDataset` round-robin, in equal numbers, and yields this rank's batches.

    Of each `size` successive batches rank 0 gets the first, rank 1 the second, and so on. With `shuffle=True` the batches
    are dealt in a new random order for each epoch, the same on all ranks. The order changes after Keras' `on_epoch_end`, so
    that workers never see a change in the middle of an epoch.

        model.fit(hvd.data.ShardedPyDataset(dataset, shuffle=True))

    `on_epoch_begin` and `on_epoch_end` reach the wrapped dataset on every rank. If that dataset shuffles its samples, all
    ranks have to draw the same order, for example from a `numpy.random.default_rng(seed)` of its own.

    Args:
        dataset: The whole data, the same on all ranks. Its `num_batches` may be None (endless).
        shuffle: Whether to deal the batches anew in each epoch. Defaults to `False`.
        seed: The seed of the random order, the same on all ranks. Defaults to `0`.
        remainder: How to treat the last `num_batches % size` batches: `"drop"` leaves them out, `"repeat"` repeats them
            until each rank has one. Defaults to `"drop"`.
        rank: The index of the shard. Defaults to `hvd.rank()`.
        size: The number of shards. Defaults to `hvd.size()`; goes together with `rank`.
        process_set: The ranks that share the data, if `rank` and `size` are not given. Defaults to all.
        workers: See `keras.utils.PyDataset`. Defaults to that of the wrapped dataset, as do the next two.
        use_multiprocessing: See `keras.utils.PyDataset`.
        max_queue_size: See `keras.utils.PyDataset`.

    Attributes:
        epoch: The epoch that determines the order; `on_epoch_end` adds one. To resume an interrupted job, set it to the
            epoch to resume at, on all ranks.
        start: The number of batches of the whole data, at the beginning of this epoch, that all ranks together have trained
            on before. `on_epoch_end` sets it to 0.

    Raises:
        TypeError: `dataset` is not a `keras.utils.PyDataset`.
        ValueError: There are fewer batches than ranks, or `shuffle=True` with an endless dataset.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        shuffle: bool = False,
        seed: int = 0,
        remainder: str = "drop",
        rank: int | None = None,
        size: int | None = None,
        workers: int | None = None,
        use_multiprocessing: bool | None = None,
        max_queue_size: int | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not isinstance(dataset, PyDataset):
            raise TypeError(
                "ShardedPyDataset takes a keras.utils.PyDataset; use hvd.data.shard for a tf.data.Dataset or arrays. "
                f"Received: {type(dataset).__name__}"
            )
        given = {
            "workers": workers,
            "use_multiprocessing": use_multiprocessing,
            "max_queue_size": max_queue_size,
        }
        super().__init__(**_compat.py_dataset_options(dataset, given))
        shards.check_remainder(remainder)
        count = _compat.num_batches(dataset)
        if shuffle and count is None:
            raise ValueError(
                "An endless dataset cannot be shuffled here: shuffle inside the dataset, or give it a length. "
                "Received: num_batches=None, shuffle=True"
            )
        self.dataset = dataset
        self._shuffle, self._seed, self._remainder = shuffle, seed, remainder
        self._rank, self._size = shards.resolve(rank, size, process_set, "data.ShardedPyDataset")
        self._order: tuple[Any, np.ndarray] | None = None
        if count is not None:
            shards.shard_size(count, self._size, remainder, "batches")

    @property
    def num_batches(self) -> int | None:
        """Batches per epoch and rank; None if endless."""
        count = _compat.num_batches(self.dataset)
        return None if count is None else shards.share_of(count - self.start, self._size, self._remainder)

    def done_after(self, batches: int) -> int:
        """The number of batches of the whole data that are done after so many batches of each rank in this epoch."""
        count = _compat.num_batches(self.dataset)
        done = self.start + batches * self._size
        return done if count is None else min(done, count)

    def __len__(self) -> int:
        count = self.num_batches
        if count is None:
            raise TypeError("An endless ShardedPyDataset has no length; use fit(steps_per_epoch=...).")
        return count

    def __getitem__(self, index: int) -> Any:
        count = _compat.num_batches(self.dataset)
        position = self.start + index * self._size + self._rank
        if count is None:
            return self.dataset[position]
        if not 0 <= index < len(self):
            raise IndexError(
                f"There are {len(self)} batches: pass an index below that. Received: index={index}"
            )
        if position >= count:
            last = count - (count - self.start) % self._size
            position = last + (position - last) % (count - last)
        return self.dataset[int(self._deal(count)[position])]

    def on_epoch_begin(self) -> None:
        """Calls the wrapped dataset's."""
        super().on_epoch_begin()
        self.dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Calls the wrapped dataset's; the next epoch has an order of its own."""
        if self._of_training():
            self.dataset.on_epoch_end()
        super().on_epoch_end()

    def _deal(self, count: int) -> np.ndarray:
        """The order of the batches of all ranks in this epoch."""
        key = (self.epoch, count)
        if self._order is None or self._order[0] != key:
            generator = np.random.default_rng((self._seed, self.epoch))
            self._order = key, generator.permutation(count) if self._shuffle else np.arange(count)
        return self._order[1]
