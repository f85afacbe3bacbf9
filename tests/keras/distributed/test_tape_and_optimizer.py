"""Our tape and our optimizer together: each gradient is reduced once."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras import support

EAGER = (False, True)


def reductions():
    from tfddl.runtime import stats

    return stats()["requests"]


@pytest.mark.parametrize("eager", EAGER)
@pytest.mark.parametrize("op", ["Average", "Sum"])
@on_ranks(2)
def test_reduced_once(hvd, op, eager):
    op = getattr(hvd, op)
    rate = 0.05 if op == hvd.Average else 0.025
    arrays = support.data(2, "float64")
    whole, network = support.model("float64"), support.model("float64")
    support.loop(whole, keras.optimizers.SGD(0.05), arrays, 2 * support.BATCH)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate), op=op)
    before = reductions()
    mine = support.shard(arrays, hvd.rank(), 2)
    support.loop(
        network,
        optimizer,
        mine,
        support.BATCH,
        tape=lambda t: hvd.DistributedGradientTape(t, op=op),
        eager=eager,
    )
    assert reductions() - before == support.STEPS
    np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-10)


@pytest.mark.parametrize("eager", EAGER)
@on_ranks(2)
def test_only_some_are_reduced(hvd, eager):
    """What the tape did not see, the optimizer reduces; the rest stays as it is, also under Sum."""
    v, w = tf.Variable([1.0, 1.0]), tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    optimizer.build([v, w])
    own = float(hvd.rank() + 1)

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
            y = tf.reduce_sum(v) * own
        (gradient,) = tape.gradient(y, [v])
        optimizer.apply_gradients([(gradient, v), (tf.constant([10.0]) * own, w)])

    (step if eager else tf.function(step))()
    np.testing.assert_allclose(v, [-2.0, -2.0])
    np.testing.assert_allclose(w, [-29.0])


@pytest.mark.parametrize("eager", EAGER)
@on_ranks(2)
def test_changed_in_between_is_harmless_under_average(hvd, eager):
    arrays = support.data(2, "float64")
    whole, network = support.model("float64"), support.model("float64")

    def clip(gradients):
        return tf.clip_by_global_norm(gradients, 0.5)[0]

    support.loop(whole, keras.optimizers.SGD(0.05), arrays, 2 * support.BATCH, change=clip)
    support.loop(
        network,
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)),
        support.shard(arrays, hvd.rank(), 2),
        support.BATCH,
        tape=hvd.DistributedGradientTape,
        eager=eager,
        change=clip,
    )
    np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-10)


@on_ranks(1)
def test_changed_in_between_is_warned_of_under_sum(hvd):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    v = tf.Variable([1.0, 1.0])
    optimizer.build([v])

    @tf.function
    def step():
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
            y = tf.reduce_sum(v * v)
        optimizer.apply_gradients([(tape.gradient(y, v) * 0.5, v)])

    with support.logged() as said:
        step()
    assert len(said) == 1 and "a second time" in said[0]
