"""Arrays in memory, sharded by rows."""

from typing import Any

from tfddl.data import shards
from tfddl.runtime.process_sets import ProcessSet, global_process_set


def shard_arrays(
    *arrays: Any,
    rank: int | None = None,
    size: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Takes every `size`-th row from `rank` on, equally many on every rank.

    At most `size - 1` rows at the end are left out. NumPy arrays come back as views, nothing is copied; batch
    `i` of all ranks together holds the rows of batch `i` of the whole, where that is `size` times as large.

        x, y = hvd.data.shard_arrays(x, y)

    Args:
        arrays: NumPy arrays, tensors, lists: what has a length and can be sliced. All of one length.
        rank: Which part. Defaults to `hvd.rank()`.
        size: How many parts. Defaults to `hvd.size()`; goes together with `rank`.
        process_set: The ranks among which to share, where `rank` and `size` are not given. Defaults to all.

    Returns:
        The part of the array, or a tuple of them if there are several.

    Raises:
        ValueError: No array is given, they differ in length, or there is not one row for each rank.
    """
    rank, size = shards.resolve(rank, size, process_set)
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) != 1:
        raise ValueError(f"shard_arrays needs arrays of one length. Received: lengths={lengths}")
    end = shards.share(lengths[0], size, "drop", "rows") * size
    parts = tuple(array[rank:end:size] for array in arrays)
    return parts if len(parts) > 1 else parts[0]
