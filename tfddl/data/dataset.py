"""shard_dataset: this rank's elements of a tf.data.Dataset."""

from typing import Any

import tensorflow as tf

from tfddl.data import order, shards
from tfddl.keras.consistency import cache_check
from tfddl.runtime.process_sets import ProcessSet, global_process_set


def shard_dataset(
    dataset: tf.data.Dataset,
    *,
    remainder: str = "drop",
    rank: int | None = None,
    size: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> tf.data.Dataset:
    """Deals the elements of a dataset round-robin, in equal numbers, and returns this rank's shard.

    Of each `size` successive elements the first goes to rank 0, the second to rank 1, and so on. An element is a sample
    before `batch()`, a batch after it.

        train = hvd.data.shard(dataset).shuffle(10_000).batch(32)

    The cardinality may be unknown (generators, filters) or infinite, and elements may have any structure. All ranks have
    to see the elements in one order. Without `rank` and `size` every rank has to call the function, which compares the
    cardinality, the seeds of shuffles and a few rows of `from_tensor_slices` over the ranks.

    A shuffle before `shard` draws a new order for each iterator, also with a seed. If one rank iterates once more than the
    others, such as to look at a batch, shards overlap without an error from then on: shard first, or use
    `shuffle(n, seed=..., reshuffle_each_iteration=False)`.

    Args:
        dataset: The whole data, the same on all ranks.
        remainder: How to treat an incomplete last group of fewer than `size` elements: `"drop"` leaves it out, `"repeat"`
            completes it by repeating its own elements. Defaults to `"drop"`.
        rank: The index of the shard. Defaults to `hvd.rank()`.
        size: The number of shards. Defaults to `hvd.size()`; goes together with `rank`, and then the ranks compare nothing.
        process_set: The ranks that share the data, if `rank` and `size` are not given. Defaults to all.

    Returns:
        A `tf.data.Dataset` with the same element spec, with a known cardinality if `dataset` has one.

    Raises:
        ValueError: There are fewer elements than ranks, the ranks' datasets differ in cardinality, seeds or rows, or their
            order is not certain: shuffled, repeated or chosen at random without a seed, or `deterministic=False`. Or the
            call is in a graph of TensorFlow 1 or in a `tf.function`.
    """
    shards.check_remainder(remainder)
    whole_job = rank is None
    rank, size = shards.resolve(rank, size, process_set, "data.shard")
    if size == 1:
        return dataset
    if not tf.executing_eagerly():
        raise ValueError(
            "hvd.data.shard(dataset) needs the dataset's cardinality, which a graph only computes later: in a program for "
            "TensorFlow 1 use hvd.data.shard_arrays before you make the dataset, or "
            "dataset.shard(hvd.size(), hvd.rank()) with equally many steps on all ranks; otherwise call it outside of "
            f"tf.function. Received: {dataset!r}"
        )
    count = int(dataset.cardinality())
    order.check(dataset, count, process_set if whole_job else None)
    if count == tf.data.INFINITE_CARDINALITY:
        return dataset.shard(size, rank)
    if count == tf.data.UNKNOWN_CARDINALITY:
        return _from_groups(dataset, rank, size, remainder)
    each = shards.shard_size(count, size, remainder, "elements")
    if remainder == "repeat" and count % size:
        sharded = _from_groups(dataset, rank, size, remainder)
        return sharded.apply(tf.data.experimental.assert_cardinality(each))
    return dataset.take(each * size).shard(size, rank)


def _from_groups(dataset: tf.data.Dataset, rank: int, size: int, remainder: str) -> tf.data.Dataset:
    """Element number `rank` of every group of `size` elements. Needs no cardinality."""
    if any(_is_ragged_row(spec) for spec in tf.nest.flatten(dataset.element_spec)):
        return _from_windows(dataset, rank, size, remainder)
    box = tf.OptionalSpec(dataset.element_spec)

    def boxed(*parts: Any) -> tf.Tensor:
        element = parts if isinstance(dataset.element_spec, tuple) else parts[0]
        optional = tf.experimental.Optional.from_value(element)
        return tf.nest.flatten(optional, expand_composites=True)[0]

    def mine(group: tf.Tensor) -> Any:
        variant = group[rank % tf.shape(group)[0]]
        return tf.nest.pack_sequence_as(box, [variant], expand_composites=True).get_value()

    # batch() needs equal shapes, and the last batch may be smaller; an Optional holds any element in one scalar.
    groups = dataset.map(boxed).batch(size, drop_remainder=remainder == "drop")
    return cache_check.marked(groups.map(mine), rank)


def _from_windows(dataset: tf.data.Dataset, rank: int, size: int, remainder: str) -> tf.data.Dataset:
    """The same as `_from_groups`, slower for small elements, for rows of ragged tensors too.

    tf.data keeps such a row as a variant and passes it to a function as a tensor. So an Optional has the wrong type, and
    the result of a `map` has another spec, which `batch` treats in another way.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    # window() fails for None, and zip() makes a tuple of a namedtuple.
    flat = _with_spec(dataset, tuple(spec for spec in specs if spec != tf.type_spec_from_value(None)))
    windows = flat.window(size, drop_remainder=remainder == "drop")
    mine = windows.flat_map(lambda *group: tf.data.Dataset.zip(group).repeat().skip(rank).take(1))
    return cache_check.marked(_with_spec(mine, dataset.element_spec), rank)


def _is_ragged_row(spec: Any) -> bool:
    """Whether this is the spec of a row of a ragged tensor with one ragged dimension."""
    return isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank == 0


def _with_spec(dataset: tf.data.Dataset, spec: Any) -> tf.data.Dataset:
    return tf.data.experimental.from_variant(tf.data.experimental.to_variant(dataset), spec)
