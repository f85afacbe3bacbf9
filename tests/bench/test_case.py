"""Inputs and right results of cases, compared with NumPy."""

import numpy as np
import pytest

from tfddl.bench.case import Case, collective, count_wrong, gradients
from tfddl.bench.command import DTYPES
from tfddl.bench.gradient_sets import SETS, floats

WANTED = {
    "allreduce": lambda inputs, mine: inputs.sum(axis=0),
    "chain": lambda inputs, mine: inputs.sum(axis=0),
    "broadcast": lambda inputs, mine: inputs[0],
    "allgather": lambda inputs, mine: inputs.ravel(),
    "reducescatter": lambda inputs, mine: inputs.sum(axis=0)[mine],
    "alltoall": lambda inputs, mine: inputs[:, mine].ravel(),
}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", WANTED)
def test_expected(operation, ranks, dtype):
    case = collective(operation, 48 * np.dtype(dtype).itemsize, dtype, ranks)
    inputs = np.stack([case.values(rank) for rank in range(ranks)])
    assert inputs.dtype == dtype
    if ranks > 1:
        assert not np.array_equal(inputs[0], inputs[1]), (
            "if ranks gave the same, a wrong result could look right"
        )
    length = 48 // ranks
    for rank in range(ranks):
        wanted = WANTED[operation](inputs.astype("float64"), slice(rank * length, (rank + 1) * length))
        result = case.expected(rank)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result.astype("float64"), wanted)
        np.testing.assert_array_equal(
            (ranks * result).astype("float64"), ranks * wanted
        )  # of two allreduces in a row


def test_sizes_can_be_shared_out():
    assert collective("alltoall", 4, "float32", 3).count == 3
    assert collective("allreduce", 4, "float32", 3).count == 1
    assert collective("allgather", 1 << 20, "float64", 3).bytes >= 1 << 20


def test_wrong_elements():
    assert count_wrong(np.array([1.0, np.nan, 3.0]), np.array([1.0, 2.0, 3.0])) == 1
    assert count_wrong(np.zeros(3), np.zeros(5)) == 5
    assert count_wrong(np.ones((2, 2)), 2.0) == 4


def test_floor():
    """Two ranks copy half of the data, then read and write all of it: 1.5 copies."""
    assert Case("allreduce", 2, 1).floor_copies() == 1.5
    assert Case("allreduce", 1, 1).floor_copies() == 1.0


def test_sets_have_their_published_sizes():
    sizes = {name: (len(shapes()), floats(shapes())) for name, shapes in SETS.items()}
    assert sizes == {"resnet50": (161, 25_557_032), "vgg16": (32, 138_357_544), "1000x1KB": (1000, 256_000)}


def test_the_mean_of_gradients_is_exact():
    for ranks in (1, 2, 3, 4, 7):
        case = gradients("1000x1KB", ranks)
        scales = np.float32([case.scale(rank) for rank in range(ranks)])
        assert scales.mean(dtype="float64") == case.mean == np.float32(case.mean)
