"""hvd.evaluate where some ranks have no rows: the numbers of one process, on all ranks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow
from tests.keras.test_metrics import Largest, check, classifier, data

AUC = keras.metrics.AUC
BATCH = 8
ROWS = {"first": [0, 9, 4], "others": [5, 0, 0]}
"""Of each rank; the first of a job of one has some all the same."""


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return -(-len(self.x) // BATCH)

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[rows], self.y[rows]


def batches(x, y):
    for start in range(0, len(x), BATCH):
        yield x[start : start + BATCH], y[start : start + BATCH]


def dataset(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def keep(x, y):
    return True


KINDS = {
    "arrays": lambda x, y: {"x": x, "y": y, "batch_size": BATCH},
    "dataset": lambda x, y: {"x": dataset(x, y)},
    "dataset of unknown length": lambda x, y: {"x": dataset(x, y).filter(keep)},
    "PyDataset": lambda x, y: {"x": Batches(x, y)},
    "generator": lambda x, y: {"x": batches(x, y)},
}


def rows_of(hvd, which):
    sizes = [max(sizes, 1) if hvd.size() == 1 else sizes for sizes in ROWS[which]]
    return sizes[: hvd.size()]


@pytest.mark.parametrize(
    ("kind", "which"),
    [
        ("arrays", "first"),
        slow("arrays", "others"),
        ("dataset", "others"),
        slow("dataset of unknown length", "first"),
        slow("PyDataset", "others"),
        ("generator", "first"),
    ],
)
@on_ranks(2, full=(1, 3))
def test_equal_to_one_process(hvd, kind, which):
    """Twice: the first time the rank without rows has no variables in its metrics yet."""
    (x, y, _), parts = data(rows_of(hvd, which))
    network, one_process = (classifier([AUC(name="auc"), "mae"]) for _ in range(2))
    part = parts[hvd.rank()]
    for return_dict in (True, False):
        mine = KINDS[kind](x[part], y[part])
        found = hvd.evaluate(network, **mine, verbose=0, return_dict=return_dict)
        whole = one_process.evaluate(x, y, verbose=0, return_dict=return_dict)
        if return_dict:
            check(found, whole)
        else:
            np.testing.assert_allclose(found, whole, rtol=2e-6)


@on_ranks(2, full=(3,))
def test_means_are_of_the_ranks_with_rows(hvd):
    (x, y, _), parts = data(rows_of(hvd, "first"))
    part, network = parts[hvd.rank()], classifier([Largest()])
    found = hvd.evaluate(network, x[part], y[part], batch_size=BATCH, verbose=0, return_dict=True)
    largest = [network.predict(x[each], verbose=0).max() for each in parts if len(x[each])]
    np.testing.assert_allclose(found["largest"], np.mean(largest), rtol=1e-6)


@on_ranks(2, full=(1, 3))
def test_no_rows_at_all(hvd):
    (x, y, _), _ = data([4])
    network = classifier([AUC(name="auc")])
    with pytest.raises(ValueError, match="Received: no rows on any rank"):
        hvd.evaluate(network, x[:0], y[:0], verbose=0)


@on_ranks(3)
def test_other_metrics_are_an_error_on_all_ranks(hvd):
    (x, y, _), _ = data([4])
    rows = 0 if hvd.rank() == 0 else 4
    network = classifier([AUC(name="auc")] if hvd.rank() == 1 else ["mae"])
    with pytest.raises(
        ValueError,
        match=r"the same metrics on all ranks.*ranks 0, 1: auc, metric auc.*; rank 2: weighted_mae",
    ):
        hvd.evaluate(network, x[:rows], y[:rows], verbose=0)
