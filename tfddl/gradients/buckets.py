"""The bucket plan: which gradients travel together, decided once, before anything runs.

The backward pass computes the gradients of the last layers first. So buckets are filled in reverse order of the
gradients, and each bucket starts as soon as its members exist. The first bucket is small, so that the network starts
early. The others are large, because each collective has a fixed cost. The plan is pure Python over dtypes and shapes:
each rank computes the same plan, and the engine compares the plans by their signature.
"""

import dataclasses
import math
import os
from collections.abc import Sequence

from tfddl.runtime.agreement import digested

BUCKET_VARIABLE = "TFDDL_BUCKET_MB"
DEFAULT_MEGABYTES = "1,25"
_READABLE_SIGNATURE = 400
"""Characters of the shapes that a signature quotes, for error messages. A digest covers all shapes."""

_LINE_BYTES = 64

_ITEM_SIZES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}
_UNKNOWN_ITEM_SIZE = 8
"""Bytes of an element of any other dtype, at most. It only moves the boundary between two buckets."""

Shape = Sequence[int | None] | None


@dataclasses.dataclass(frozen=True)
class BucketSizes:
    """The sizes at which a bucket is full.

    Attributes:
        first: Bytes of the bucket that starts first.
        later: Bytes of each other bucket.
    """

    first: int
    later: int


@dataclasses.dataclass(frozen=True)
class BucketPlan:
    """Which gradients travel together.

    Attributes:
        buckets: Slots of the gradients in each bucket; buckets in the order in which they get ready. Within a bucket,
            gradients of whole cache lines come first: a result that begins on a line needs no copy.
        signature: Names the dtype and the shapes of every bucket. Ranks with different signatures have different
            gradients.
    """

    buckets: tuple[tuple[int, ...], ...]
    signature: str


@dataclasses.dataclass
class _Open:
    """A bucket that is not full."""

    members: list[int]
    size: int


def bucket_sizes(text: str | None = None) -> BucketSizes:
    """Reads the bucket sizes.

    Args:
        text: "first,later" in megabytes (2**20 bytes), or one number for both. Defaults to the environment
            variable `TFDDL_BUCKET_MB`, and without it to "1,25".

    Returns:
        The sizes in bytes.

    Raises:
        ValueError: If the text is not one or two positive numbers.
    """
    if text is None:
        text = os.environ.get(BUCKET_VARIABLE) or DEFAULT_MEGABYTES
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(0 < number < math.inf for number in numbers):
        raise ValueError(
            f"{BUCKET_VARIABLE} takes the megabytes of the first and of the later buckets, two positive "
            f"numbers: set {BUCKET_VARIABLE}={DEFAULT_MEGABYTES}. Received: {text!r}"
        )
    first, later = numbers[0], numbers[-1]
    return BucketSizes(max(1, int(first * 2**20)), max(1, int(later * 2**20)))


def plan_buckets(
    gradients: Sequence[tuple[str, Shape]], sizes: BucketSizes, groups: Sequence[Sequence[int]] = ()
) -> BucketPlan:
    """Distributes gradients over buckets.

    A bucket holds one dtype and no more bytes than `sizes` says, unless its only member is larger. A gradient whose
    static shape is not fully known gets a bucket of its own. So does a gradient of more than half a later bucket: packing
    would only copy it.

    Args:
        gradients: Dtype name and static shape of each gradient, in the order of the model's variables.
        sizes: Limits in bytes.
        groups: Slots that share a bucket, one bucket for each dtype, of any size.

    Returns:
        The plan. Every slot occurs once.
    """
    closed = _group_buckets(gradients, groups)
    grouped = {index for members in closed for index in members}
    open_buckets: dict[str, _Open] = {}
    for index in reversed([index for index in range(len(gradients)) if index not in grouped]):
        dtype, shape = gradients[index]
        size = _bytes(dtype, shape)
        if size is None:
            closed.append([index])
            continue
        limit = sizes.later if closed else sizes.first
        large = 2 * size > sizes.later
        bucket = open_buckets.get(dtype)
        if bucket is not None and (large or bucket.size + size > limit):
            closed.append(bucket.members)
            bucket = None
        if bucket is None:
            bucket = open_buckets[dtype] = _Open([], 0)
        bucket.members.append(index)
        bucket.size += size
        if large:
            closed.append(open_buckets.pop(dtype).members)
    closed.extend(bucket.members for bucket in open_buckets.values())
    # A bucket is ready when its last member is. The backward pass computes low slots last.
    closed.sort(key=lambda members: members[-1], reverse=True)
    buckets = tuple(tuple(sorted(members, key=lambda i: _splits_a_line(*gradients[i]))) for members in closed)
    return BucketPlan(buckets, _signature(gradients, buckets))


def _group_buckets(
    gradients: Sequence[tuple[str, Shape]], groups: Sequence[Sequence[int]]
) -> list[list[int]]:
    """The buckets of the user's groups."""
    buckets: dict[tuple[int, str], list[int]] = {}
    for number, members in enumerate(groups):
        for index in sorted(members, reverse=True):
            buckets.setdefault((number, gradients[index][0]), []).append(index)
    return list(buckets.values())


def _bytes(dtype: str, shape: Shape) -> int | None:
    """Size of one gradient; None if a dimension is unknown."""
    if shape is None:
        return None
    count = 1
    for dimension in shape:
        if dimension is None:
            return None
        count *= dimension
    return count * _ITEM_SIZES.get(dtype, _UNKNOWN_ITEM_SIZE)


def _splits_a_line(dtype: str, shape: Shape) -> bool:
    """Whether the next gradient in a packed bucket would not begin on a cache line."""
    return (_bytes(dtype, shape) or 0) % _LINE_BYTES != 0


def _signature(gradients: Sequence[tuple[str, Shape]], buckets: Sequence[Sequence[int]]) -> str:
    texts = []
    for members in buckets:
        shapes = ";".join(_shape_text(gradients[index][1]) for index in members)
        texts.append(f"{gradients[members[0]][0]}({shapes})")
    text = " ".join(texts)
    return f"{len(gradients)} gradients in {len(buckets)} buckets {digested(text, _READABLE_SIGNATURE)}"


def _shape_text(shape: Shape) -> str:
    if shape is None:
        return "?"
    return "x".join("?" if dimension is None else str(dimension) for dimension in shape) or "scalar"
