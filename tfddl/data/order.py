"""Checks that all ranks see the elements of a tf.data.Dataset in one order; else shards would overlap and miss elements."""

from collections.abc import Iterator

import tensorflow as tf

from tfddl.ops.exchange import check_same as check_same_lines
from tfddl.runtime.process_sets import ProcessSet, global_process_set

_ADVICE = (
    "Shard first and shuffle afterwards, each rank in an order of its own: shard(dataset).shuffle(n). Or give "
    "all ranks the same seed, shuffle(n, seed=...), before tf.random.set_seed or keras.utils.set_random_seed is "
    "called with a seed that differs from rank to rank: it changes the order of a seeded shuffle too."
)


def check_deterministic(dataset: tf.data.Dataset) -> None:
    """Checks the order of this rank's dataset.

    Raises:
        ValueError: The dataset was shuffled without a seed, or may be out of order.
    """
    steps = list(_pipeline(dataset))
    if dataset.options().deterministic is False or any(_unordered(step) for step in steps):
        raise ValueError(
            "Each rank may get the elements in another order, and shards would overlap: shard before the steps "
            f"that have deterministic=False. Received: {dataset!r}"
        )
    if (0, 0) in _seeds(steps):
        raise ValueError(
            f"The dataset is shuffled without a seed (tf.data.Dataset.list_files shuffles too), so that the "
            f"ranks' shards would overlap. {_ADVICE} Received: {dataset!r}"
        )


def check_same(dataset: tf.data.Dataset, count: int, process_set: ProcessSet = global_process_set) -> None:
    """Compares the cardinality and the seeds of the dataset over all ranks. All ranks call it.

    Args:
        dataset: This rank's whole dataset.
        count: Its cardinality.
        process_set: The ranks that share the dataset.

    Raises:
        ValueError: On every rank, if the ranks shuffle with different seeds, or have different lengths.
    """
    seeds = [
        f"shuffle {number} with seeds {seeds}" for number, seeds in enumerate(_seeds(_pipeline(dataset)), 1)
    ]
    check_same_lines(
        [f"cardinality {count}", *seeds],
        f"hvd.data.shard needs the same dataset, in the same order, on all ranks. {_ADVICE}",
        "data.shard",
        process_set,
    )


def _pipeline(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """The dataset and all datasets that it is made from. No public API shows the seeds."""
    yield dataset
    for source in dataset._inputs():
        yield from _pipeline(source)


def _seeds(steps: Iterator[tf.data.Dataset] | list[tf.data.Dataset]) -> list[tuple[int, int]]:
    """The seeds of each shuffle: the graph's and the op's; both are 0 without a seed."""
    shuffles = (step for step in steps if hasattr(step, "_seed2"))
    return [(int(step._seed), int(step._seed2)) for step in shuffles]


def _unordered(step: tf.data.Dataset) -> bool:
    return getattr(step, "_deterministic", "default") == "false"
