"""The mean of tensors over the ranks, whose values travel as int8 with one scale for each block.

Values are rounded twice: before each rank gets its slice of all ranks, and before all ranks get all means. They are rounded
up or down at random, so that the mean of many results is the true mean (stochastic rounding, QSGD, arXiv 1610.02132, with
the largest value of a block as its scale). A value is wrong by at most 1/127 of the largest in its block, each time. A block
with an infinity or a NaN becomes NaN.

If several hosts have equally many ranks, several each, the ranks of a host first add up their values through shared memory,
as float32. So the sums of a host travel, not the values of each of its ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfddl import _graphs
from tfddl.ops import native
from tfddl.runtime import rank_queries
from tfddl.runtime.process_sets import ProcessSet, by_id, even_hosts, id_of, members, rank_in

BLOCK = 256
"""Values that share a scale."""
ROW_BYTES = BLOCK + 4
"""A block that travels: its values, then its scale as the bytes of a float32."""
_LARGEST = 127.0


class Exchanged(NamedTuple):
    """The results of an exchange; all float32.

    Attributes:
        means: `[blocks, BLOCK]`, the same bits on all ranks.
        left: `[blocks, BLOCK]`, what this rank has not sent of its values, or of the sums of its host. Only the sum over all
            ranks matters.
        slice_left: `[blocks / ranks, BLOCK]`, what this rank has not sent of the means of its slice.
    """

    means: tf.Tensor
    left: tf.Tensor
    slice_left: tf.Tensor


def mean(tensors: Sequence[tf.Tensor], name: str, process_set: ProcessSet, seed: int) -> list[tf.Tensor]:
    """The mean over the ranks, without error feedback.

    Args:
        tensors: Floating-point tensors of fully known shapes, the same on all ranks.
        name: Names the collectives.
        process_set: The ranks.
        seed: Of the roundings: a new one for each call.

    Returns:
        The means, in the dtypes of the tensors; the same bits on all ranks.
    """
    number = id_of(process_set, name)
    found = exchange(to_blocks(tensors, len(members(process_set))), 0.0, name, number, seed)
    return from_blocks(found.means, tensors)


def exchange(
    blocks: tf.Tensor,
    slice_left: Any,
    name: str,
    process_set: int,
    seed: Any,
    index: int = 0,
    context: str = "",
) -> Exchanged:
    """Exchanges blocks in two steps: each rank gets a slice of all ranks, then all ranks get all means.

    Args:
        blocks: float32, `[blocks, BLOCK]`, a multiple of the number of ranks.
        slice_left: What this rank has not sent of the means of its slice before: float32 `[blocks / ranks, BLOCK]`, or 0.
        name: Names the collectives.
        process_set: The number of the process set.
        seed: Of the roundings, an int or a scalar of int64: a new one for each call.
        index: Tells the calls of one seed apart.
        context: On what the ranks have to agree; see `native.allreduce`.
    """
    rank_queries.note_trace("compression=hvd.Compression.int8")
    ranks = by_id(process_set)
    size, rank = len(members(ranks)), rank_in(ranks)
    count = int(blocks.shape[0])
    stream = 2 * size * index + rank
    # In a function compiled by XLA alltoall sends equally many rows to each rank.
    hosts = None if _graphs.in_xla_context() else even_hosts(ranks)
    first = tf.stack([tf.cast(seed, tf.int64), stream])
    if hosts:
        total, left = _sum_by_hosts(blocks, hosts, rank, name, process_set, first)
    else:
        total, left = _sum(blocks, size, name, process_set, first)
    means = total / size + slice_left
    rows, sent_means = pack(means, tf.stack([tf.cast(seed, tf.int64), stream + size]))
    gathered = native.grouped_allgather([rows], f"{name}.means", context, process_set)[0]
    gathered = _check_all_came(gathered, count)
    return Exchanged(unpack(gathered), left, means - sent_means)


def _sum(
    blocks: tf.Tensor, size: int, name: str, process_set: int, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The sum over the ranks of this rank's slice, `[blocks / ranks, BLOCK]`, and what this rank has not sent."""
    count = int(blocks.shape[0])
    rows, sent = pack(blocks, seed)
    received = native.alltoall(rows, None, f"{name}.values", process_set)[0]
    return _add_up(unpack(_padded(received, count, ROW_BYTES)), size), blocks - sent


def _sum_by_hosts(
    blocks: tf.Tensor, hosts: list[list[int]], rank: int, name: str, process_set: int, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """As `_sum`. The k-th rank of a host adds up the slices of the k-th ranks of all hosts, then sends each its own."""
    size, count = sum(map(len, hosts)), int(blocks.shape[0])
    slice_rows = count // size
    (host,) = (each for each in hosts if rank in each)
    columns = [sorted(column) for column in zip(*hosts, strict=True)]
    column = columns[host.index(rank)]

    slices = tf.reshape(blocks, [size, slice_rows, BLOCK])
    ordered = tf.reshape(tf.gather(slices, [owner for each in columns for owner in each]), [count, BLOCK])
    splits = [slice_rows * len(hosts) if peer in host else 0 for peer in range(size)]
    received = native.alltoall(ordered, tf.constant(splits, tf.int64), f"{name}.host", process_set)[0]
    sums = _add_up(_padded(received, count, BLOCK), len(host))

    rows, sent = pack(sums, seed)
    splits = [slice_rows if peer in column else 0 for peer in range(size)]
    received = native.alltoall(rows, tf.constant(splits, tf.int64), f"{name}.values", process_set)[0]
    total = _add_up(unpack(_padded(received, len(column) * slice_rows, ROW_BYTES)), len(column))
    unsent = tf.reshape(sums - sent, [len(column), slice_rows, BLOCK])
    nothing = tf.zeros([1, slice_rows, BLOCK])
    places = [column.index(owner) if owner in column else len(column) for owner in range(size)]
    left = tf.gather(tf.concat([unsent, nothing], axis=0), places)
    return total, tf.reshape(left, [count, BLOCK])


def _add_up(rows: tf.Tensor, parts: int) -> tf.Tensor:
    """The sum of so many equal parts of the rows, which follow each other."""
    return tf.reduce_sum(tf.reshape(rows, [parts, int(rows.shape[0]) // parts, BLOCK]), axis=0)


def to_blocks(tensors: Sequence[tf.Tensor], size: int) -> tf.Tensor:
    """The values of all tensors, then zeros: float32 `[blocks, BLOCK]`, a multiple of `size`."""
    flat = tf.concat([tf.reshape(tf.cast(each, tf.float32), [-1]) for each in tensors], axis=0)
    count = block_count(tensors, size)
    return tf.reshape(tf.pad(flat, [[0, count * BLOCK - int(flat.shape[0])]]), [count, BLOCK])


def from_blocks(blocks: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The inverse of `to_blocks`: values in the shapes and dtypes of `tensors`."""
    sizes = [each.shape.num_elements() for each in tensors]
    parts = tf.split(tf.reshape(blocks, [-1])[: sum(sizes)], sizes)
    return [
        tf.cast(tf.reshape(part, each.shape), each.dtype) for part, each in zip(parts, tensors, strict=True)
    ]


def block_count(tensors: Sequence[tf.Tensor], size: int) -> int:
    """The blocks of `to_blocks`."""
    return -(-sum(each.shape.num_elements() for each in tensors) // (BLOCK * size)) * size


def pack(blocks: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Rounds blocks to rows that travel.

    Args:
        blocks: float32, `[blocks, BLOCK]`.
        seed: Two int64.

    Returns:
        int8 `[blocks, ROW_BYTES]`, values from -127 to 127 and the scale; and what they stand for, float32
        `[blocks, BLOCK]`.
    """
    finite = tf.reduce_all(tf.math.is_finite(blocks), axis=1)
    largest = tf.reduce_max(tf.abs(blocks), axis=1)
    scales = tf.where(finite, largest / _LARGEST, float("nan"))
    exact = tf.math.divide_no_nan(blocks, scales[:, tf.newaxis])
    rounded = tf.floor(exact + tf.random.stateless_uniform(tf.shape(blocks), seed))
    rounded = tf.where(finite[:, tf.newaxis], tf.clip_by_value(rounded, -_LARGEST, _LARGEST), 0.0)
    rows = tf.concat([tf.cast(rounded, tf.int8), tf.bitcast(scales, tf.int8)], axis=1)
    return rows, rounded * scales[:, tf.newaxis]


def unpack(rows: tf.Tensor) -> tf.Tensor:
    """The values that rows of `pack` stand for: float32 `[blocks, BLOCK]`."""
    return tf.cast(rows[:, :BLOCK], tf.float32) * _scales(rows)[:, tf.newaxis]


def _scales(rows: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(rows[:, BLOCK:], tf.float32)


def _padded(rows: tf.Tensor, count: int, width: int) -> tf.Tensor:
    """Zeros if rows are missing, so that this rank takes part in the last exchange, where all ranks see the error."""
    return _all_or(lambda: tf.zeros([count, width], rows.dtype), rows, count, width)


def _check_all_came(rows: tf.Tensor, count: int) -> tf.Tensor:
    """Checks the number of rows of all ranks, which is smaller while some ranks have joined."""

    def missing() -> tf.Tensor:
        tf.debugging.assert_equal(
            tf.shape(rows)[0],
            count,
            message="Compression.int8 needs the values of all ranks, and some have called hvd.join(): use hvd.PowerSGD or "
            "Compression.bf16 for ranks that run out of data.",
        )
        return tf.zeros([count, ROW_BYTES], rows.dtype)  # so that no other op fails before the check

    return _all_or(missing, rows, count, ROW_BYTES)


def _all_or(missing: Callable[[], tf.Tensor], rows: tf.Tensor, count: int, width: int) -> tf.Tensor:
    """The rows if there are `count` of them, else the result of `missing`."""
    if not _graphs.in_xla_context():  # there tfddl checks their number
        rows = tf.cond(tf.equal(tf.shape(rows)[0], count), lambda: rows, missing)
    return tf.ensure_shape(rows, [count, width])
