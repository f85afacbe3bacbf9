"""RowsDataset: batches of arrays in a random order that all ranks share, from any row of an epoch on."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.data.py_dataset import EpochDataset


class RowsDataset(EpochDataset):
    """This rank's batches of whole arrays.

    All ranks draw the same order of the rows for an epoch, and deal them: of each `size` successive rows each rank gets one.
    At most `size - 1` rows at the end are left out.

    Args:
        arrays: One to three structures of NumPy arrays with equally many rows: x, y and sample_weight.
        batch_size: Rows of a batch on this rank.
        shuffle: Whether the order is random, another one in each epoch.
        seed: The seed of the orders.
        rank: The index of this rank's share.
        size: The number of shares.

    Attributes:
        epoch: The epoch that determines the order.
        start: The number of rows at the beginning of this epoch that have been trained on before. 0 from the next epoch on.
    """

    def __init__(
        self, arrays: Sequence[Any], *, batch_size: int, shuffle: bool, seed: int, rank: int, size: int
    ) -> None:
        super().__init__()
        self._arrays, self._batch_size = tuple(arrays), batch_size
        self._shuffle, self._seed, self._rank, self._size = shuffle, seed, rank, size
        self._rows = len(tf.nest.flatten(self._arrays)[0])
        self._order: tuple[int, np.ndarray] | None = None

    @property
    def num_batches(self) -> int:
        """Batches of the rest of the epoch."""
        return math.ceil(self._each() / self._batch_size)

    def __getitem__(self, index: int) -> Any:
        first = index * self._batch_size
        last = min(first + self._batch_size, self._each())
        numbers = self._deal()[self.start :][first * self._size + self._rank : last * self._size : self._size]
        return tf.nest.map_structure(lambda array: _as_fit_takes(array[numbers]), self._arrays)

    def done_after(self, batches: int) -> int:
        """The number of rows of the epoch that all ranks have trained on after so many batches of the rest."""
        return self.start + min(batches * self._batch_size, self._each()) * self._size

    def _each(self) -> int:
        return (self._rows - self.start) // self._size

    def _deal(self) -> np.ndarray:
        if self._order is None or self._order[0] != self.epoch:
            order = np.arange(self._rows)
            if self._shuffle:
                np.random.default_rng((self._seed, self.epoch)).shuffle(order)
            self._order = self.epoch, order
        return self._order[1]


def _as_fit_takes(rows: np.ndarray) -> np.ndarray:
    """Numbers with a fraction have Keras' type, as where `fit` gets arrays."""
    return rows.astype(_compat.keras().config.floatx()) if np.issubdtype(rows.dtype, np.floating) else rows
