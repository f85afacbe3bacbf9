"""Keras 2 where there is no eager execution, as after tf.compat.v1.disable_eager_execution()."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras2 import support

legacy = tf.keras.optimizers.legacy


def train(arrays, batch, wrap, callbacks=()):
    """Fits in a graph of its own."""
    with tf.Graph().as_default(), tf.compat.v1.Session().as_default():
        network = support.model()
        network.compile(wrap(legacy.SGD(0.1, momentum=0.9)), "mse")
        network.fit(*arrays, batch_size=batch, shuffle=False, verbose=0, callbacks=list(callbacks))
        return support.weights(network)


@on_ranks(1, 2, 3)
def test_fit_as_one_process_with_the_big_batch(hvd):
    """Also without tfddl, whose watch over CallbackLists is on from the first DistributedOptimizer."""
    whole = support.data(hvd.size())
    mine = support.shard(whole, hvd.rank(), hvd.size())
    weights = train(mine, support.BATCH, hvd.DistributedOptimizer)
    expected = train(whole, hvd.size() * support.BATCH, lambda optimizer: optimizer)
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
    support.check_equal_on_all_ranks(hvd, [weights])


@pytest.mark.parametrize("name", ["MetricAverageCallback", "StopTogetherCallback", "broadcast"])
@on_ranks(1, 2)
def test_callbacks_of_tfddl_are_refused(hvd, name):
    callbacks = hvd.callbacks
    made = (
        callbacks.BroadcastGlobalVariablesCallback(0) if name == "broadcast" else getattr(callbacks, name)()
    )
    with pytest.raises(ValueError, match=r"need eager execution.*Received: callbacks=\["):
        train(support.data(1), support.BATCH, hvd.DistributedOptimizer, [made])
