"""Gradient accumulation by Keras: N micro-batches, one reduction."""

import keras
import numpy as np
import pytest

from tests.harness import on_ranks
from tests.keras import support

MICRO = 3


def reductions():
    """How many buckets this rank has submitted."""
    from tfddl.runtime import stats

    return stats()["requests"]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("clip", [{}, {"global_clipnorm": 0.2}])
@on_ranks(2, full=(1,))
def test_equals_the_whole_batch_and_reduces_once_per_update(hvd, clip, eager):
    size, updates = hvd.size(), 2
    arrays = support.data(size, "float64", steps=MICRO * updates)
    mine = support.shard(arrays, hvd.rank(), size)
    network = support.model("float64")
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=MICRO, **clip)
    hvd.DistributedOptimizer(optimizer)
    before = reductions()
    support.fit(network, optimizer, mine, support.BATCH, run_eagerly=eager)
    made = reductions() - before
    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if version >= (3, 5):
        assert made == updates
        if hvd.rank() == 0:
            whole, plain = support.model("float64"), keras.optimizers.SGD(0.05, momentum=0.9, **clip)
            support.fit(whole, plain, arrays, MICRO * support.BATCH * size)
            np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-10)
    support.check_equal_on_all_ranks(hvd, [*network.variables, *optimizer.variables])


@on_ranks(2)
def test_reduced_by_the_tape_once_for_each_micro_batch(hvd):
    """Gradients that our tape has reduced are not reduced again at the update."""
    arrays = support.data(2, "float64", steps=MICRO)
    whole, network = support.model("float64"), support.model("float64")
    support.loop(whole, keras.optimizers.SGD(0.05), arrays, MICRO * support.BATCH * 2)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, gradient_accumulation_steps=MICRO))
    mine = support.shard(arrays, hvd.rank(), 2)
    before = reductions()
    support.loop(network, optimizer, mine, support.BATCH, tape=hvd.DistributedGradientTape)
    assert reductions() - before == MICRO
    np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-10)
