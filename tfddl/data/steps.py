"""Steps per epoch, equal on all ranks."""

from tfddl.runtime import rank_queries
from tfddl.runtime.process_sets import ProcessSet, global_process_set, members


def steps_per_epoch(
    n: int, batch: int, size: int | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """The number of full steps in one pass over the data of the whole job.

    For `fit(steps_per_epoch=...)` with a dataset that repeats for ever, or has an unknown length.

    Args:
        n: The number of samples before sharding.
        batch: Samples per rank and step.
        size: Number of ranks. Defaults to `hvd.size()`.
        process_set: The ranks that share the data, if `size` is not given. Defaults to all.

    Returns:
        `n // (batch * size)`.

    Raises:
        ValueError: The result would be 0, or an argument is not positive.

    Example:
        On 2 ranks:

        >>> hvd.data.steps_per_epoch(60_000, 32)
        937
    """
    if size is None:
        rank_queries.note("size", "hvd.data.steps_per_epoch()")
        size = len(members(process_set, "data.steps_per_epoch"))
    if min(n, batch, size) < 1:
        raise ValueError(
            f"steps_per_epoch needs positive numbers: pass the samples of all the data and the batch of one rank. "
            f"Received: n={n}, batch={batch}, size={size}"
        )
    steps = n // (batch * size)
    if steps == 0:
        raise ValueError(
            f"The data does not fill one step of {size} ranks x {batch} samples: use a batch of at most "
            f"{max(n // size, 1)} samples, or fewer ranks. Received: n={n}, batch={batch}, size={size}"
        )
    return steps
