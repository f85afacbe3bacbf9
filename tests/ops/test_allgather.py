"""allgather against NumPy's concatenation."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.support import DTYPES, MODES, array, call, check

ROWS = ((2, 2, 2), (1, 4, 2), (0, 3, 1), (2, 0, 0), (0, 0, 0))
"""First dimensions by rank."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@on_ranks(1, 2, 3)
def test_rows_differ_by_rank(hvd, dtype, mode):
    for rows in ROWS:
        for rest in ((), (3,), (2, 0), (2, 2)):
            parts = [array(rank, dtype, (rows[rank], *rest)) for rank in range(hvd.size())]
            check(call(mode, hvd.allgather, parts[hvd.rank()]), np.concatenate(parts))


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@on_ranks(2, 3)
def test_more_than_any_chunk(hvd, dtype):
    parts = [array(rank, dtype, (1_000_003 * (rank + 1), 2)) for rank in range(hvd.size())]
    check(hvd.allgather(parts[hvd.rank()]), np.concatenate(parts))


@on_ranks(1, 2)
def test_a_scalar_has_no_rows(hvd):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError)):
        hvd.allgather(tf.constant(1.0))


@on_ranks(2)
def test_static_shape_leaves_the_rows_open(hvd):
    @tf.function
    def gather(x):
        result = hvd.allgather(x)
        assert result.shape.as_list() == [None, 3]
        return result

    check(gather(tf.ones([2, 3])), np.ones([4, 3], "float32"))
