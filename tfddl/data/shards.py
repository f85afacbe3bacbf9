"""The index of this rank's shard, the number of shards, and their size."""

from tfddl.keras.consistency import callback_list
from tfddl.runtime import basics, rank_queries
from tfddl.runtime.process_sets import ProcessSet, id_of, members

REMAINDERS = ("drop", "repeat")


def resolve(rank: int | None, size: int | None, process_set: ProcessSet, call: str) -> tuple[int, int]:
    """The index of the shard and the number of shards: as given, or this process's rank in the process set and its size.

    Raises:
        ValueError: Only one of the two is given, or `rank` is not from 0 to `size - 1`. Or neither is given, and this
            process is not in the set.
    """
    if rank is None and size is None:
        rank_queries.note("data", "hvd.data")
        size = len(members(process_set, call))
        if size > 1:
            callback_list.watch_shards()
        process_set_id = id_of(process_set, "hvd.data")
        return (process_set.rank() or 0) if process_set_id else basics.rank(), size
    if rank is None or size is None:
        raise ValueError(f"Give both `rank` and `size`, or neither. Received: rank={rank}, size={size}")
    if not 0 <= rank < size:
        raise ValueError(
            f"`rank` must be at least 0 and less than `size`: pass hvd.rank() and hvd.size(), or neither. "
            f"Received: rank={rank}, size={size}"
        )
    return rank, size


def check_remainder(remainder: str) -> None:
    """Raises a ValueError if `remainder` is not one of `REMAINDERS`."""
    if remainder not in REMAINDERS:
        raise ValueError(
            f'`remainder` must be "drop" or "repeat": pass one of these. Received: remainder={remainder!r}'
        )


def share_of(count: int, size: int, remainder: str) -> int:
    """The number of elements in each of `size` shards, perhaps 0. See `shard_size`."""
    return count // size if remainder == "drop" else -(-count // size)


def shard_size(count: int, size: int, remainder: str, noun: str) -> int:
    """The number of elements in each of `size` shards.

    Args:
        count: The number of elements in the whole data, from 0.
        size: The number of shards.
        remainder: `"drop"` or `"repeat"`.
        noun: The name of the elements in the error, in the plural.

    Raises:
        ValueError: The shards would be empty.
    """
    each = share_of(count, size, remainder)
    if each == 0:
        smaller = "" if noun == "rows" else ", smaller batches"
        raise ValueError(
            f"There are fewer {noun} than ranks, and each rank needs one: use more data{smaller} or fewer ranks. "
            f"Received: {noun}={count}, size={size}"
        )
    return each
