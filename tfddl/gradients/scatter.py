"""Reduces gradients so that each rank gets one slice of each, and gathers the slices of all ranks again."""

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfddl import _graphs
from tfddl.gradients.buckets import bucket_sizes, plan_buckets
from tfddl.gradients.gradient_options import GradientOptions
from tfddl.ops import names, native
from tfddl.ops.constants import Sum
from tfddl.runtime import xla
from tfddl.runtime.process_sets import id_of

BLOCK = 64
"""Slices begin at multiples of so many values, so that Eigen computes each value by the same instructions as in the whole
tensor: it computes groups of 4 to 16 values at once, and those left at the end one by one, with other roundings."""


def bounds(count: int, rank: int, ranks: int) -> tuple[int, int]:
    """The slice of a rank: its first value, and the one behind its last value.

    Blocks of values are divided as a reducescatter divides rows: each rank has `blocks // ranks`, and the first
    `blocks % ranks` ranks have one more.

    Args:
        count: The number of values.
        rank: The rank in its process set.
        ranks: The number of ranks.
    """
    blocks = _blocks(count)
    begin, end = (blocks // ranks * each + min(each, blocks % ranks) for each in (rank, rank + 1))
    return min(begin * BLOCK, count), min(end * BLOCK, count)


def scatter_gradients(
    gradients: Sequence[Any],
    slots: Sequence[int],
    of: int,
    rank: int,
    *,
    owner: str,
    options: GradientOptions,
) -> list[tf.Tensor]:
    """Combines gradients over all ranks, and keeps this rank's slice of each.

    Args:
        gradients: Tensors or `tf.IndexedSlices` of known shapes, the same on all ranks.
        slots: The indices of their variables among those of the optimizer.
        of: The number of those variables.
        rank: The rank in its process set.
        owner: Names the reduction; equal on all ranks and different for each optimizer.
        options: How to combine.

    Returns:
        For each gradient the values of `bounds`, `[slice]`, of the reduced and flattened gradient.
    """
    xla.require(owner)
    number = id_of(options.process_set, owner)
    sequence = names.unique(f"{owner}.scatter", number)
    context = f"gradients={list(slots)} of {of}"
    ranks = options.process_set.size() or 1
    counts = [gradient.shape.num_elements() for gradient in gradients]
    compressed = [options.compression.compress(_in_blocks(gradient)) for gradient in gradients]
    results: list[Any] = [None] * len(gradients)
    for index, bucket in _buckets([tensor for tensor, _ in compressed], counts):
        reduced = native.reducescatter(
            [compressed[member][0] for member in bucket],
            options.op,
            f"{sequence}.{index}",
            prescale=1 / options.gradient_predivide_factor,
            postscale=options.gradient_predivide_factor,
            context=context,
            process_set=number,
        )
        for member, part in zip(bucket, reduced, strict=True):
            begin, end = bounds(counts[member], rank, ranks)
            flat = tf.reshape(options.compression.decompress(part, compressed[member][1]), [-1])
            results[member] = tf.ensure_shape(flat[: end - begin], [end - begin])
    return results


def gather_slices(
    slices: Sequence[tf.Tensor], counts: Sequence[int], rank: int, *, owner: str, options: GradientOptions
) -> list[tf.Tensor]:
    """Gives all ranks the slices of all ranks.

    Args:
        slices: This rank's, `[slice]` each; see `bounds`.
        counts: The number of values in all slices of each together.
        rank: The rank in its process set.
        owner: As for `scatter_gradients`.
        options: The process set.

    Returns:
        One tensor `[count]` for each slice, the same bits on all ranks.
    """
    number = id_of(options.process_set, owner)
    sequence = names.unique(f"{owner}.gather", number)
    results: list[Any] = [None] * len(slices)
    for index, bucket in _buckets(slices, counts):
        mine, name = [slices[member] for member in bucket], f"{sequence}.{index}"
        if _graphs.in_xla_context():
            ranks = options.process_set.size() or 1
            whole = [
                _padded(part, counts[member], rank, ranks) for member, part in zip(bucket, mine, strict=True)
            ]
            gathered = native.allreduce(whole, Sum, name, process_set=number)
        else:
            gathered = native.grouped_allgather(mine, name, process_set=number)
        for member, tensor in zip(bucket, gathered, strict=True):
            results[member] = tf.ensure_shape(tensor, [counts[member]])
    return results


def _blocks(count: int) -> int:
    return -(-count // BLOCK)


def _in_blocks(gradient: Any) -> tf.Tensor:
    """The gradient as rows of one block each, the last one filled up with zeros."""
    flat = tf.reshape(tf.convert_to_tensor(gradient), [-1])
    count = flat.shape[0]
    if count % BLOCK:
        flat = tf.pad(flat, [[0, -count % BLOCK]])
    return tf.reshape(flat, [_blocks(count), BLOCK])


def _buckets(tensors: Sequence[tf.Tensor], counts: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The number of each bucket, and its members. The same on all ranks: plans go by whole gradients."""
    specifications = [(tensor.dtype.name, [count]) for tensor, count in zip(tensors, counts, strict=True)]
    return iter(enumerate(plan_buckets(specifications, bucket_sizes()).buckets))


def _padded(part: tf.Tensor, count: int, rank: int, ranks: int) -> tf.Tensor:
    """The slice between zeros: XLA's allgather takes equally many rows from all ranks, so that a sum gathers there."""
    begin, end = bounds(count, rank, ranks)
    return tf.pad(part, [[begin, count - end]])
