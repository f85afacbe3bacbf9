"""Checks that ranks do not share the file of a `Dataset.cache` for different parts of the data: all would read one part."""

import os
import socket
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfddl.keras.consistency.rows_check import pipeline, samples_in
from tfddl.ops.exchange import differing
from tfddl.runtime.agreement import in_words
from tfddl.runtime.process_sets import ProcessSet

_noted: list[tuple[str, list[str]]] = []  # the file of each cache, and the part of the data before it


def marked(shard: tf.data.Dataset, rank: int) -> tf.data.Dataset:
    """The same shard, with its number where those of `tf.data.Dataset.shard` have it."""
    shard._index = tf.constant(rank, tf.int64)
    return shard


def note(data: Iterable[Any]) -> None:
    """Notes the files of the caches in the data of `fit`, for `check_noted`."""
    steps = [step for each in data if isinstance(each, tf.data.Dataset) for step in pipeline(each)]
    caches = [step for step in steps if type(step).__name__ == "CacheDataset"]
    files = [tf.get_static_value(cache._filename) or b"" for cache in caches]
    _noted[:] = [
        (os.path.abspath(os.fsdecode(file)), _part_before(cache))
        for file, cache in zip(files, caches, strict=True)
        if file
    ]


def check_noted(name: str, process_set: ProcessSet) -> None:
    """Compares what the ranks have noted since the last call. All ranks call it.

    Raises:
        ValueError: On every rank, if ranks of one host share a file for different shards or rows.
    """
    mine = socket.gethostname(), list(_noted)
    _noted.clear()
    found = None if process_set.size() == 1 else differing([str(mine[1])], mine, name, process_set)
    users: dict[tuple[str, str], dict[int, list[str]]] = {}
    for rank, (host, caches) in (found or {}).items():
        for file, part in caches:
            users.setdefault((host, file), {})[rank] = part
    for (host, file), parts in users.items():
        if any(part != parts[min(parts)] for part in parts.values()):
            raise ValueError(
                "The ranks share a file of Dataset.cache for different parts of the data, and would all train on the part "
                "of the rank that fills the file: give each rank a file of its own, as in "
                '.cache(f"{path}-{hvd.rank()}-of-{hvd.size()}"), or cache in memory. '
                f"Received: {file} of {in_words(parts)} on {host}"
            )


def _part_before(cache: tf.data.Dataset) -> list[str]:
    """The number of the shard, and some rows in memory, of each step before a cache."""
    shards = [step._index for step in pipeline(cache) if hasattr(step, "_index")]
    return [
        *(f"shard {tf.get_static_value(index)}" for index in shards),
        *(sample.line() for samples in samples_in(cache) for sample in samples),
    ]
