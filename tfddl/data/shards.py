"""Which part of how many, and what is left over."""

from tfddl.runtime import basics
from tfddl.runtime.process_sets import ProcessSet, global_process_set, id_of, members

REMAINDERS = ("drop", "repeat")


def resolve(
    rank: int | None, size: int | None, process_set: ProcessSet = global_process_set
) -> tuple[int, int]:
    """This process's number in the process set and the set's size, where the caller names no others.

    Raises:
        ValueError: Only one of the two is given, or they do not fit each other. Or neither is given, and this process is
            not in the set.
    """
    if rank is None and size is None:
        size = len(members(process_set))
        number = id_of(process_set, "hvd.data")
        return (process_set.rank() or 0) if number else basics.rank(), size
    if rank is None or size is None:
        raise ValueError(f"Give both `rank` and `size`, or neither. Received: rank={rank}, size={size}")
    if not 0 <= rank < size:
        raise ValueError(
            f"`rank` must be at least 0 and less than `size`. Received: rank={rank}, size={size}"
        )
    return rank, size


def check_remainder(remainder: str) -> None:
    """Raises a ValueError for a word that is not one of `REMAINDERS`."""
    if remainder not in REMAINDERS:
        raise ValueError(f'`remainder` must be "drop" or "repeat". Received: remainder={remainder!r}')


def share(count: int, size: int, remainder: str, what: str) -> int:
    """How many of `count` things each of `size` ranks gets.

    Args:
        count: How many there are, from 0.
        size: Number of ranks.
        remainder: `"drop"` or `"repeat"`.
        what: What they are called in the error.

    Raises:
        ValueError: It would be none.
    """
    each = count // size if remainder == "drop" else -(-count // size)
    if each == 0:
        raise ValueError(
            f"There are fewer {what} than ranks, and each rank needs one: use more data, smaller batches or fewer "
            f"ranks. Received: {what}={count}, size={size}"
        )
    return each
