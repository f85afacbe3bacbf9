"""The questions of a program about the ranks, in a job that may go on without some of them."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks


def watched(monkeypatch):
    from tfddl.runtime import asked

    monkeypatch.setattr(asked, "may_survive", lambda: True)
    monkeypatch.setattr(asked, "asked", asked.Asked())
    return asked


@on_ranks(1, 2)
def test_calls_of_the_program(hvd, monkeypatch):
    asked = watched(monkeypatch)
    with asked.asking_again():
        hvd.size(), hvd.rank(), hvd.data.shard(np.arange(4))
    assert asked.asked == asked.Asked()
    tf.function(lambda: hvd.size_op() + hvd.rank_op())()
    assert asked.asked == asked.Asked()
    hvd.local_rank_op()
    assert asked.asked.rank == "hvd.local_rank_op()"
    asked.asked.rank = ""
    hvd.local_rank(), hvd.rank()
    assert asked.asked == asked.Asked(rank="hvd.local_rank()")
    hvd.global_process_set.size(), hvd.size()
    hvd.data.shard(np.arange(4), rank=0, size=2)
    assert asked.asked == asked.Asked(rank="hvd.local_rank()", size="ProcessSet.size()")
    hvd.data.shard(np.arange(4))
    assert asked.asked.data == "hvd.data" and not asked.asked.in_trace
    hvd.data.steps_per_epoch(8, 1)
    tf.function(lambda: tf.constant(hvd.size()))()
    assert asked.asked.in_trace == "hvd.size()"


@on_ranks(2)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_training_step_asks_nothing(hvd, monkeypatch, scaled):
    import keras

    asked = watched(monkeypatch)
    optimizer = keras.optimizers.Adam(0.1)
    if scaled and hasattr(keras.optimizers, "LossScaleOptimizer"):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer = hvd.DistributedOptimizer(optimizer)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    model.fit(np.ones((8, 2)), np.ones(8), batch_size=4, verbose=0, callbacks=callbacks)
    assert asked.asked == asked.Asked()


@on_ranks(2)
def test_gradients_that_keep_a_rank(hvd, monkeypatch):
    asked = watched(monkeypatch)

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allgather(x)
        return tape.gradient(y, x)

    gradient(tf.ones([2]))
    assert asked.asked.in_trace == "the gradient of a collective"
