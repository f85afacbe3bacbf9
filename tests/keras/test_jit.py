"""jit_compile=True where there are no XLA kernels: switched off by the callback, or one sentence."""

import keras
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras import support
from tests.xla.support import without_kernels


@on_ranks(2, full=(1,))
def test_the_callback_switches_it_off(hvd):
    network = support.model()
    network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=True)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    x, y = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    with support.logged() as said, without_kernels():
        for _ in range(2):
            network.fit(x, y, batch_size=support.BATCH, verbose=0, callbacks=[callback])
    assert network.jit_compile is False
    assert len(said) == (hvd.rank() == 0)
    assert not said or "jit_compile is switched off" in said[0]
    support.check_equal_on_all_ranks(hvd, network.variables)


@on_ranks(2, full=(1,))
def test_after_a_fit_without_the_callback(hvd):
    network = support.model()
    network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=True)
    x, y = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    with without_kernels():
        with pytest.raises(ValueError, match=r"`model.compile\(..., jit_compile=False\)`"):
            network.fit(x, y, batch_size=support.BATCH, verbose=0)
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        network.fit(x, y, batch_size=support.BATCH, verbose=0, callbacks=[callback])


@on_ranks(2, full=(1,))
def test_a_loop_of_ones_own(hvd):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    v = tf.Variable([1.0])
    optimizer.build([v])

    def step():
        optimizer.apply_gradients([(tf.constant([1.0]), v)])

    with without_kernels(), pytest.raises(ValueError, match=r"Received: jit_compile=True"):
        tf.function(step, jit_compile=True)()
    tf.function(step)()
    assert float(v[0]) == 0.0


@pytest.mark.parametrize("accumulate", [{}, {"gradient_accumulation_steps": 2}])
@on_ranks(1)
def test_under_a_loss_scale_optimizer(hvd, accumulate):
    inner = keras.optimizers.SGD(1.0, **accumulate)
    optimizer = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(inner))
    v = tf.Variable([1.0])
    optimizer.build([v])
    with without_kernels(), pytest.raises(ValueError, match=r"Received: jit_compile=True"):
        tf.function(lambda: optimizer.apply([tf.constant([1.0])], [v]), jit_compile=True)()
