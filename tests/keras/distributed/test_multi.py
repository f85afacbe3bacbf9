"""MultiOptimizer: an optimizer for each part of the variables, all of them distributed."""

import contextlib
import os
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow
from tests.keras import support
from tests.sets.support import added

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
    x, chosen = np.ones((4, 4), "f"), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    refusal = pytest.raises(ValueError, match=r"call model\.build\(input_shape\) before fit")
    for first, expected in (([keras.Input((4,))], contextlib.nullcontext()), ([], refusal)):
        network = keras.Sequential([*first, keras.layers.Dense(4)])
        network.compile(MULTI(lambda _: chosen), "mse")
        with expected:
            network.fit(x, x, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    around = keras.optimizers.LossScaleOptimizer(
        MULTI(keras.optimizers.OptimizerMap(*map(hvd.DistributedOptimizer, optimizers()[:1])))
    )
    network = support.model("float64")
    with pytest.raises(ValueError, match=r"give the MultiOptimizer to tfddl.DistributedOptimizer. Received"):
        around.apply([variable.value for variable in network.variables], network.trainable_variables)


class Best(keras.callbacks.EarlyStopping):
    """Restores the first epoch on rank 0, the last on rank 1."""

    def __init__(self, rank):
        super().__init__("mine", mode="min", patience=9, restore_best_weights=True)
        self.sign = 1 - 2 * rank

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, {"mine": self.sign * epoch})


@on_ranks(2)
def test_settings_of_members(hvd):
    """Local layers of a member, TFDDL_CHECK, residuals, options, sets, and what LocalSGD says."""
    x = np.full((8, 4), 1.0 + hvd.rank(), "f")

    def train(*callbacks, **options):
        keras.utils.set_random_seed(7)
        network = keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(4) for _ in range(2))])
        local = network.layers[0]
        matrices = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.01), local_layers=local, **options)
        vectors = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
        network.compile(MULTI(keras.optimizers.OptimizerMap(matrices, {"none": vectors})), "mse")
        broadcast = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        network.fit(x, x, verbose=0, epochs=2, callbacks=[*broadcast, *callbacks])
        return network

    with mock.patch.dict(os.environ, {"TFDDL_CHECK": "1"}):
        network = train(Best(hvd.rank()), compression=hvd.PowerSGD(rank=1))
    kernels = hvd.allgather(tf.stack([each.kernel.value for each in network.layers])[None], name="kernels")
    np.testing.assert_array_equal(kernels[0, 1], kernels[1, 1])
    assert not np.array_equal(kernels[0, 0], kernels[1, 0])
    assert len(hvd.ShardedCheckpoint("none", network)._compressions()) == 1
    with pytest.raises(ValueError, match="compile the model with a plain optimizer"):
        train(hvd.callbacks.LocalSGD(2))
    with pytest.raises(ValueError, match=r"rank 0: members\[1\]\.op=Average; rank 1: members\[1\]\.op=Sum"):
        train(op=hvd.Sum if hvd.rank() else hvd.Average)
    with (
        added(hvd, [0], [1]) as sets,
        pytest.raises(ValueError, match="does not combine the gradients of all"),
    ):
        train(process_set=sets[hvd.rank()])
