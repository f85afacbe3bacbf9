"""Ranks that would take different numbers of steps: an error on every rank that names them, not a wait."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, run_script
from tests.keras import support


def compiled(hvd, optimizer=None, **options):
    network = support.model()
    network.compile(hvd.DistributedOptimizer(optimizer or keras.optimizers.SGD(0.01)), "mse", **options)
    return network


def callbacks(hvd):
    return [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]


def mine(hvd, steps=support.STEPS):
    return support.shard(support.data(hvd.size(), steps=steps), hvd.rank(), hvd.size())


def rows(count):
    """`count` rows for this rank."""
    return np.zeros((count, support.FEATURES), "float32"), np.zeros((count, support.CLASSES), "float32")


def unknown(count, batch=support.BATCH):
    """A dataset of `count` batches, which it does not know."""
    dataset = tf.data.Dataset.from_tensor_slices(rows(count * batch)).batch(batch)
    return dataset.filter(lambda x, y: True)


@on_ranks(2, full=(3,))
def test_batches(hvd):
    others = "rank 0" if hvd.size() == 2 else "ranks 0, 2"
    counts = f"{others}: batches=10; rank 1: batches=9"
    with pytest.raises(
        ValueError, match=f"different numbers of batches.*steps_per_epoch.*Received: {counts}"
    ):
        compiled(hvd).fit(
            *rows(40 - 4 * (hvd.rank() == 1)), batch_size=4, verbose=0, callbacks=callbacks(hvd)
        )


@on_ranks(2)
def test_no_sample_on_one_rank(hvd):
    with pytest.raises(ValueError, match=r"batches, .*Received: rank 0: batches=2; rank 1: batches=0"):
        compiled(hvd).fit(
            *rows(8 if hvd.rank() == 0 else 0), batch_size=4, verbose=0, callbacks=callbacks(hvd)
        )


@on_ranks(2)
def test_a_partial_last_batch_counts(hvd):
    """As many batches, but fewer rows in the last one: fine."""
    network = compiled(hvd)
    network.fit(*rows(8 if hvd.rank() == 0 else 5), batch_size=4, verbose=0, callbacks=callbacks(hvd))
    assert network.optimizer.iterations.numpy() == 2
    support.check_equal_on_all_ranks(hvd, network.variables)


@on_ranks(2)
def test_epochs(hvd):
    with pytest.raises(ValueError, match=r"Received: rank 0: epochs=2; rank 1: epochs=3"):
        compiled(hvd).fit(*mine(hvd), epochs=2 + hvd.rank(), verbose=0, callbacks=callbacks(hvd))


@on_ranks(2)
def test_first_epoch(hvd):
    with pytest.raises(ValueError, match=r"different epochs.*initial_epoch.*Received: rank 0: 0; rank 1: 1"):
        compiled(hvd).fit(*mine(hvd), epochs=3, initial_epoch=hvd.rank(), verbose=0, callbacks=callbacks(hvd))


@on_ranks(2)
def test_steps_per_execution(hvd):
    with pytest.raises(
        ValueError, match=r"Received: rank 0: steps_per_execution=1; rank 1: steps_per_execution=2"
    ):
        compiled(hvd, steps_per_execution=1 + hvd.rank()).fit(*mine(hvd), verbose=0, callbacks=callbacks(hvd))


@on_ranks(2)
def test_steps_per_execution_that_keras_2_tunes(hvd):
    network = compiled(hvd)
    network.autotune_steps_per_execution = True
    with pytest.raises(ValueError, match=r'Received: steps_per_execution="auto"'):
        network.fit(*mine(hvd), verbose=0, callbacks=callbacks(hvd))


@on_ranks(2, full=(3,))
def test_accumulation(hvd):
    steps = [None, 2, 3]
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=steps[hvd.rank()])
    network = compiled(hvd, hvd.DistributedOptimizer(optimizer))
    with pytest.raises(
        ValueError, match=r"rank 0: gradient_accumulation_steps=1; rank 1: gradient_accumulation_steps=2"
    ):
        network.fit(*mine(hvd), verbose=0, callbacks=callbacks(hvd))


@on_ranks(2)
def test_unknown_numbers_that_are_equal(hvd):
    network, plain = compiled(hvd), support.model()
    network.fit(unknown(5), epochs=2, verbose=0, callbacks=callbacks(hvd))
    plain.compile("sgd", "mse")
    plain.fit(unknown(5), epochs=2, verbose=0)  # Keras may end such an epoch with a step on an empty batch.
    assert network.optimizer.iterations.numpy() == plain.optimizer.iterations.numpy() >= 10


@on_ranks(2)
def test_unknown_numbers_that_hide_in_accumulation(hvd):
    """Both ranks reduce twice: nobody waits, and nobody would notice the lost micro-batch."""
    network = compiled(hvd, keras.optimizers.SGD(0.01, gradient_accumulation_steps=2))
    with pytest.raises(ValueError, match=r"in epoch 1.*Received: rank 0: 4; rank 1: 5"):
        network.fit(unknown(4 + hvd.rank()), verbose=0, callbacks=callbacks(hvd))


SHORT = """
    import sys
    import keras, numpy as np, tensorflow as tf
    import tfddl as hvd
    from mpi4py import MPI
    MPI.COMM_WORLD.Barrier()  # the limit holds for init() too, and imports take unequal times
    hvd.init()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    rows = 8 - 2 * (hvd.rank() == 1)
    data = tf.data.Dataset.from_tensor_slices((np.zeros((rows, 2)), np.zeros((rows, 1)))).batch(1)
    model.fit(
        data.filter(lambda x, y: True), verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    )
"""


@on_ranks(2)
def test_validation_may_be_uneven(hvd):
    """Metrics are exact then; of others tests/keras/test_metrics.py has the warning."""
    with support.logged() as said:
        for count in (3, 3 + hvd.rank()):
            network = compiled(hvd)
            network.fit(
                *mine(hvd),
                validation_data=rows(count * support.BATCH),
                batch_size=support.BATCH,
                verbose=0,
                callbacks=callbacks(hvd),
            )
    assert not said


def test_a_rank_whose_data_ends_early():
    """Keras does not know the number of batches: the others wait for the gradients of a rank that is done."""
    result = run_script(2, SHORT, limit=120, environment={"TFDDL_STALL_WARNING": "12"})  # a sixth of it
    assert result.code != 0
    assert "Stopped: the ranks wait for different collectives" in result.output
    assert "The job is stopped after 10 s without progress." in result.output
    assert "end_of_epoch' (at the end of epoch 1, after 6 batches; give each rank" in result.output
