"""The questions of a program about the ranks, in a job that may go on without some of them."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks


def watched(monkeypatch):
    from tfddl.runtime import rank_queries

    monkeypatch.setattr(rank_queries, "may_survive", lambda: True)
    monkeypatch.setattr(rank_queries, "queries", rank_queries.RankQueries())
    return rank_queries


@on_ranks(1, 2)
def test_calls_of_the_program(hvd, monkeypatch):
    rank_queries = watched(monkeypatch)
    with rank_queries.asking_again():
        hvd.size(), hvd.rank(), hvd.data.shard(np.arange(4))
    assert rank_queries.queries == rank_queries.RankQueries()
    tf.function(lambda: hvd.size_op() + hvd.rank_op())()
    assert rank_queries.queries == rank_queries.RankQueries()
    hvd.local_rank_op()
    assert rank_queries.queries.rank == "hvd.local_rank_op()"
    rank_queries.queries.rank = ""
    hvd.local_rank(), hvd.rank()
    assert rank_queries.queries == rank_queries.RankQueries(rank="hvd.local_rank()")
    hvd.global_process_set.size(), hvd.size()
    hvd.data.shard(np.arange(4), rank=0, size=2)
    assert rank_queries.queries == rank_queries.RankQueries(rank="hvd.local_rank()", size="ProcessSet.size()")
    hvd.data.shard(np.arange(4))
    assert rank_queries.queries.data == "hvd.data" and not rank_queries.queries.in_trace
    hvd.data.steps_per_epoch(8, 1)
    tf.function(lambda: tf.constant(hvd.size()))()
    assert rank_queries.queries.in_trace == "hvd.size()"


@on_ranks(2)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_training_step_asks_nothing(hvd, monkeypatch, scaled):
    import keras

    rank_queries = watched(monkeypatch)
    optimizer = keras.optimizers.Adam(0.1)
    if scaled and hasattr(keras.optimizers, "LossScaleOptimizer"):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer = hvd.DistributedOptimizer(optimizer)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    model.fit(np.ones((8, 2)), np.ones(8), batch_size=4, verbose=0, callbacks=callbacks)
    assert rank_queries.queries == rank_queries.RankQueries()


@on_ranks(2)
def test_gradients_that_keep_a_rank(hvd, monkeypatch):
    rank_queries = watched(monkeypatch)

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allgather(x)
        return tape.gradient(y, x)

    gradient(tf.ones([2]))
    assert rank_queries.queries.in_trace == "the gradient of a collective"
