"""backward_passes_per_step: several batches to an update, their sum or their mean."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow
from tests.keras import support

PASSES = 3
RATE = 0.0625  # times 3 it is exact, also in the float32 of a learning rate
STEPS = 6
MODES = ("eager", "graph", slow("jit"))


def sgd(rate=RATE, **options):
    return keras.optimizers.SGD(rate, momentum=0.9, **options)


def train(network, optimizer, arrays, batch, mode):
    support.fit(network, optimizer, arrays, batch, run_eagerly=mode == "eager", jit_compile=mode == "jit")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("average", [False, True])
@on_ranks(2, full=(1, 3))
def test_sum_and_mean(hvd, average, mode):
    """The sum is the mean with the learning rate times the number of passes."""
    size = hvd.size()
    arrays = support.data(size, "float64", STEPS)
    whole, network = support.model("float64"), support.model("float64")
    rate = RATE if average else RATE * PASSES
    support.fit(whole, sgd(rate), arrays, PASSES * support.BATCH * size)
    optimizer = hvd.DistributedOptimizer(
        sgd(), backward_passes_per_step=PASSES, average_aggregated_gradients=average
    )
    train(network, optimizer, support.shard(arrays, hvd.rank(), size), support.BATCH, mode)
    assert int(optimizer.iterations) == STEPS // PASSES
    np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-10)
    support.check_equal_on_all_ranks(hvd, [*network.variables, *optimizer.variables])


@pytest.mark.parametrize("mode", ["eager", "graph"])
@on_ranks(2)
def test_clipping_sees_the_sum(hvd, mode):
    v = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, clipvalue=5.0), backward_passes_per_step=2)
    optimizer.build([v])
    step = lambda gradient: optimizer.apply_gradients([(gradient, v)])  # noqa: E731
    step = step if mode == "eager" else tf.function(step)
    for gradient in (1.0, 2.0, 4.0, 4.0):  # of rank 0; of rank 1 twice as much
        step(tf.constant([gradient * (1 + hvd.rank())]))
    np.testing.assert_allclose(v, [-(1.5 + 3.0) - 5.0])


@pytest.mark.parametrize("outside", [False, True])
@on_ranks(2)
def test_under_loss_scaling(hvd, outside):
    arrays = support.data(2, "float64", STEPS)
    whole, network = support.model("float64"), support.model("float64")
    support.fit(whole, sgd(RATE * PASSES), arrays, PASSES * support.BATCH * 2)
    optimizer = sgd()
    if outside:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, 16.0)
    optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=PASSES)
    if not outside:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, 16.0)
    support.fit(network, optimizer, support.shard(arrays, hvd.rank(), 2), support.BATCH)
    np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-10)
    support.check_equal_on_all_ranks(hvd, [*network.variables, *optimizer.variables])


@pytest.mark.parametrize("eager", [False, True])
@on_ranks(2)
def test_with_our_tape(hvd, eager):
    """The tape reduces each pass; the sum over passes is the optimizer's all the same."""
    arrays = support.data(2, "float64", STEPS)
    whole, network = support.model("float64"), support.model("float64")
    support.loop(whole, sgd(RATE * PASSES), arrays, PASSES * support.BATCH * 2)
    optimizer = hvd.DistributedOptimizer(sgd(), backward_passes_per_step=PASSES)
    mine = support.shard(arrays, hvd.rank(), 2)
    support.loop(network, optimizer, mine, support.BATCH, tape=hvd.DistributedGradientTape, eager=eager)
    np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-10)


@on_ranks(1)
def test_refusals(hvd):
    for passes in (0, -1, 1.5, True, "2", None):
        with pytest.raises(ValueError, match=f"1 or more. Received: backward_passes_per_step={passes!r}"):
            hvd.DistributedOptimizer(sgd(), backward_passes_per_step=passes)
    with pytest.raises(
        ValueError, match=r"not by both. Received: .*per_step=2, gradient_accumulation_steps=2"
    ):
        hvd.DistributedOptimizer(sgd(gradient_accumulation_steps=2), backward_passes_per_step=2)
    built = sgd()
    built.build([tf.Variable(1.0)])
    with pytest.raises(ValueError, match=r"is built already.*Received: backward_passes_per_step=2"):
        hvd.DistributedOptimizer(built, backward_passes_per_step=2)
    from tfddl.keras.distributed.status import is_distributed

    assert not is_distributed(built)
