"""Which part of how many, and what is left over."""

from tfddl.runtime import basics

REMAINDERS = ("drop", "repeat")


def resolve(rank: int | None, size: int | None) -> tuple[int, int]:
    """This process's rank and the job's size, where the caller names no others.

    Raises:
        ValueError: Only one of the two is given, or they do not fit each other.
    """
    if rank is None and size is None:
        return basics.rank(), basics.size()
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
