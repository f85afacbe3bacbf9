"""More elements than a 32-bit number counts. The engine's own tests vary the length of the pieces that travel."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.harness.group import GroupPool

PATTERN = np.arange(251, dtype="uint8")
"""A prime number of bytes: data at an offset that is wrong by a power of two shows."""

ROWS = 2**31 // len(PATTERN) + 1
NEEDED = 10
"""GiB on this machine: two ranks with two tensors of 2 GiB, and buffers."""


def available() -> float:
    """GiB that processes of this container may still take."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free / 2**30


def check(result: tf.Tensor, expected: np.ndarray) -> None:
    """All rows are `expected`."""
    rows = np.asarray(memoryview(result))  # no copy
    assert rows.size > 2**31 and rows.shape == (ROWS, len(PATTERN))
    step = 2**16
    block = np.tile(expected, [step, 1])
    for begin in range(0, ROWS, step):
        found = rows[begin : begin + step]
        assert np.array_equal(found, block[: len(found)]), f"in rows {begin} to {begin + len(found)}"


def mine(hvd) -> int:
    """How many of the rows are this rank's."""
    return ROWS // hvd.size() + (hvd.rank() < ROWS % hvd.size())


def to_the_other(hvd, row):
    splits = [0 if rank == hvd.rank() else ROWS for rank in range(2)]
    return hvd.alltoall(tf.tile(row - row[0, 0], [ROWS, 1]), splits)[0]


CALLS = (
    (lambda hvd, row: hvd.allreduce(tf.tile(row, [ROWS, 1]), op=hvd.Sum), 2 * PATTERN + 1),
    (lambda hvd, row: hvd.broadcast(tf.tile(row, [ROWS, 1]), 1), PATTERN + 1),
    (lambda hvd, row: hvd.allgather(tf.tile(row - row[0, 0], [mine(hvd), 1])), PATTERN),
    (to_the_other, PATTERN),
)


@pytest.fixture(autouse=True)
def last_of_its_ranks(rank_groups: GroupPool) -> Iterator[None]:
    """Ends the ranks, because TensorFlow keeps freed memory for its next tensors: here 6 GiB a rank."""
    yield
    rank_groups.close()


# One test, because two calls at once would need more memory.
@pytest.mark.long
@on_ranks(2, limit=400)
def test_beyond_32_bits(hvd):
    from mpi4py import MPI

    free = MPI.COMM_WORLD.bcast(available())
    if free < NEEDED:
        pytest.skip(f"needs {NEEDED} GiB of memory, has {free:.2f}")
    row = tf.constant(PATTERN[np.newaxis] + np.uint8(hvd.rank()))
    for call, expected in CALLS:
        # In a function the temporary input becomes the output.
        check(tf.function(lambda row, call=call: call(hvd, row))(row), expected)
