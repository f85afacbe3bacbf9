"""Optimizers of TF1 in `compile` and `fit` of Keras 2."""

import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras2 import support

v1 = tf.compat.v1
OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.05),
    "adam": lambda: v1.train.AdamOptimizer(0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@on_ranks(1, 2, 3)
def test_fit_as_one_process_with_the_big_batch(hvd, name):
    support.check_as_one_process(hvd, OPTIMIZERS[name])


@on_ranks(2)
def test_a_plain_one_is_refused(hvd):
    with pytest.raises(ValueError, match="optimizer is not distributed"):
        support.fit(
            support.model(),
            OPTIMIZERS["sgd"](),
            support.data(1),
            support.BATCH,
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        )


@on_ranks(2)
def test_different_ones_are_refused(hvd):
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd" if hvd.rank() == 0 else "adam"]())
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    wanted = "rank 0: optimizer=GradientDescentOptimizer; rank 1: optimizer=AdamOptimizer"
    with pytest.raises(ValueError, match=wanted):
        support.fit(support.model(), optimizer, support.data(1), support.BATCH, callbacks=[first])
