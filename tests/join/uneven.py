"""Ranks whose data ends at different times, for the tests of join."""

import numpy as np

STEPS = (3, 1, 4, 2)
"""By rank: the number of steps before its data ends."""


def active(step, size):
    """The ranks that still have data at this step."""
    return [rank for rank in range(size) if step < STEPS[rank]]


def longest(size):
    """The rank with the most steps, which joins last."""
    return int(np.argmax(STEPS[:size]))


def without(hvd, joined, body, **options):
    """Calls `body` on the other ranks while the ranks `joined` have joined; all ranks join in the end."""
    result = None if hvd.rank() in joined else body()
    last = hvd.join(**options)
    assert last not in joined
    return result
