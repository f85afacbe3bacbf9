"""MultiOptimizer: an optimizer for each part of the variables, all of them distributed."""

import keras
import numpy as np
import pytest

from tests.harness import on_ranks, slow
from tests.keras import support

MULTI = getattr(keras.optimizers, "MultiOptimizer", None)
pytestmark = pytest.mark.skipif(MULTI is None, reason="This Keras has no MultiOptimizer.")
MODES = ("eager", "graph", slow("jit"))


def optimizers(**options):
    return (
        keras.optimizers.Adam(0.01, clipnorm=0.5, **options),
        keras.optimizers.SGD(0.05, momentum=0.9, **options),
    )


def by_function(**options):
    """Chosen by a function, which Keras calls when it builds."""
    matrices, vectors = optimizers(**options)
    return MULTI(lambda variable: matrices if len(variable.shape) == 2 else vectors)


def by_map(**options):
    matrices, vectors = optimizers(**options)
    return MULTI(keras.optimizers.OptimizerMap(vectors, {".*kernel": matrices}))


MAKERS = {"function": by_function, "map": by_map}


def check(hvd, plain, optimizer, steps=support.STEPS, passes=1, **options):
    size = hvd.size()
    arrays = support.data(size, "float64", steps)
    network = support.model("float64")
    train = support.loop if "eager" in options else support.fit
    train(network, optimizer, support.shard(arrays, hvd.rank(), size), support.BATCH, **options)
    if hvd.rank() == 0:
        whole = support.model("float64")
        train(whole, plain, arrays, passes * support.BATCH * size)
        np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-9)
    support.check_equal_on_all_ranks(hvd, [*network.variables, *optimizer.variables])


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("mode", MODES)
@on_ranks(2, full=(1, 3))
def test_equals_one_process(hvd, mode, maker):
    optimizer = MAKERS[maker]()
    assert hvd.DistributedOptimizer(hvd.DistributedOptimizer(optimizer)) is optimizer
    options = {"run_eagerly": mode == "eager", "jit_compile": mode == "jit"}
    check(hvd, MAKERS[maker](), optimizer, **options)
    assert isinstance(optimizer, MULTI) and keras.optimizers.serialize(optimizer)["class_name"]


@pytest.mark.parametrize("maker", MAKERS)
@on_ranks(2)
def test_passes(hvd, maker):
    optimizer = hvd.DistributedOptimizer(
        MAKERS[maker](), backward_passes_per_step=3, average_aggregated_gradients=True
    )
    check(hvd, MAKERS[maker](), optimizer, steps=6, passes=3)
    with pytest.raises(ValueError, match=r"not by both.*gradient_accumulation_steps=2"):
        hvd.DistributedOptimizer(by_map(gradient_accumulation_steps=2), backward_passes_per_step=3)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("maker", MAKERS)
@on_ranks(2)
def test_under_loss_scaling(hvd, maker, eager):
    plain = keras.optimizers.LossScaleOptimizer(MAKERS[maker](), 16.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(MAKERS[maker](), 16.0))
    check(hvd, plain, optimizer, eager=eager)


@on_ranks(2)
def test_optimizers_distributed_one_by_one(hvd):
    matrices, vectors = map(hvd.DistributedOptimizer, optimizers())
    check(hvd, by_map(), MULTI(keras.optimizers.OptimizerMap(vectors, {".*kernel": matrices})))
    around = keras.optimizers.LossScaleOptimizer(
        MULTI(keras.optimizers.OptimizerMap(*map(hvd.DistributedOptimizer, optimizers()[:1])))
    )
    network = support.model("float64")
    with pytest.raises(ValueError, match=r"give the MultiOptimizer to tfddl.DistributedOptimizer. Received"):
        around.apply([variable.value for variable in network.variables], network.trainable_variables)
