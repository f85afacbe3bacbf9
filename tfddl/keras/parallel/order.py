"""Checks that all ranks build the same global batches in the same order."""

import threading
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl.keras.consistency.callback_list import Callback
from tfddl.keras.parallel.part import bounds, is_optional, rows_of
from tfddl.ops.objects import allgather_object
from tfddl.runtime import basics
from tfddl.runtime.agreement import in_words

_NAME = "DataParallel.order"


class OrderCallback(Callback):
    """Compares hashes of whole batches: of batches 0, 1, 2, 4, 8, ... of each dataset and epoch.

    It compares after the first step and at the end of each epoch.

    Args:
        shows_batch: Whether rank 0 prints how the first batch is divided.

    Attributes:
        has_begun: Whether `fit` has begun to train.
    """

    def __init__(self, shows_batch: bool) -> None:
        super().__init__()
        self._lock = threading.Lock()  # tf.data calls from threads of its own
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}
        self._datasets = 0
        self._shows_batch = shows_batch and basics.rank() == 0
        self._compared = False
        self.has_begun = False

    def watch(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """A dataset with the same elements, whose hashes are kept."""
        number, self._datasets = self._datasets, self._datasets + 1
        seen, lock = (
            self._seen,
            self._lock,
        )  # TensorFlow keeps the function, and would keep the model of this callback

        def note(index: np.ndarray, rows: np.ndarray, *tensors: np.ndarray) -> np.ndarray:
            with lock:
                seen[number, int(index)] = _digest(tensors), int(rows)
            return index

        def pass_on(index: tf.Tensor, batch: Any) -> Any:
            leaves = [leaf for leaf in tf.nest.flatten(batch) if not is_optional(leaf)]
            tensors = tf.nest.flatten(leaves, expand_composites=True)
            sampled = tf.equal(tf.bitwise.bitwise_and(index, index - 1), 0)
            noted = tf.cond(
                sampled,
                lambda: tf.numpy_function(note, [index, rows_of(batch), *tensors], tf.int64),
                lambda: index,
            )
            with tf.control_dependencies([noted]):
                return tf.nest.map_structure(
                    lambda leaf: leaf if is_optional(leaf) else tf.identity(leaf), batch
                )

        return dataset.enumerate().map(pass_on)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """After BackupAndRestore has read its file, which stands before this callback."""
        self.has_begun = True

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """After the first step: compares early."""
        if not self._compared:
            self._compared = True
            if self._shows_batch:
                self._show()
            self._compare("in the first step")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares the batches of the epoch."""
        self._compare(f"in epoch {epoch + 1}")

    def _show(self) -> None:
        with self._lock:
            # The largest batch read so far: a shuffled PyDataset may begin with its last one, which is smaller.
            rows = max(rows for (dataset, _), (_, rows) in self._seen.items() if dataset == 0)
        size = basics.size()
        parts = [high - low for low, high in (bounds(rows, rank, size) for rank in range(size))]
        equal = len(set(parts)) == 1
        shown = f"{size} x {parts[0]}" if equal else " + ".join(map(str, parts))
        words = f"on each of {size} processes, which are more than its rows" if rows < size else f"= {shown}"
        print(f"tfddl: global batch {rows} {words}", flush=True)

    def _compare(self, when: str) -> None:
        with self._lock:
            mine = dict(self._seen)
        ranks = allgather_object(mine, name=_NAME)
        common = sorted(set.intersection(*(set(each) for each in ranks)))
        for key in common:
            dataset, index = key
            _check_equal(
                [seen[key] for seen in ranks],
                f"{'validation' if dataset else 'training'} batch {index} {when}",
            )
        with self._lock:
            for key in common:
                self._seen.pop(key, None)


def compare_batch(number: int, batch: Any) -> None:
    """Compares the hashes of a batch of `train_on_batch` with number 0, 1, 2, 4, 8, ...

    Args:
        number: int, of the model's batches.
        batch: A structure of arrays and None, whole.

    Raises:
        ValueError: On every rank: the hashes differ.
    """
    if number & (number - 1) == 0:
        tensors = [np.asarray(each) for each in tf.nest.flatten(batch, expand_composites=True)]
        _check_equal(allgather_object(_digest(tensors), name=_NAME), f"batch {number} of train_on_batch")


def _check_equal(digests: list[Any], batch: str) -> None:
    different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if different:
        raise ValueError(
            f"The processes need the same global batches, but {batch} differs from rank 0's on {in_words(different)}. If "
            "the program gives each rank a part of the data, with hvd.data.shard for instance, it distributes itself "
            "already: start it without --auto and without hvd.DataParallel(). Else shuffle with the seed that "
            "keras.utils.set_random_seed sets, read files in a fixed order, give the training data and the validation data "
            "a shuffle each, and leave num_parallel_calls out of a map that draws random numbers."
        )


def _digest(tensors: Sequence[np.ndarray]) -> int:
    digest = 0
    for tensor in tensors:
        content = repr(tensor.tolist()).encode() if tensor.dtype == object else tensor.tobytes()
        digest = zlib.crc32(content, digest)
    return digest
