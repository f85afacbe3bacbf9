"""SyncBatchNormalization, exact metrics and evaluate on Keras 2."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras2 import support

keras = tf.keras


def normalizing(layer, shape):
    keras.utils.set_random_seed(3)
    inputs = keras.Input(shape)
    hidden = layer(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(hidden)))


@pytest.mark.parametrize("shape", [(5,), (4, 4, 3)], ids=str)
@pytest.mark.parametrize("jit_compile", [False, True])
@on_ranks(1, 2, 3)
def test_batch_normalization_as_one_process(hvd, shape, jit_compile):
    generator = np.random.default_rng(1)
    x = generator.normal(3.0, size=(hvd.size() * 12, *shape)).astype("f") * (
        1 + np.arange(hvd.size() * 12).reshape(-1, *[1] * len(shape)) % hvd.size()
    )
    y = generator.normal(size=(len(x), 1)).astype("f")
    network = normalizing(hvd.SyncBatchNormalization(momentum=0.8), shape)
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    mine = support.shard((x.astype("f"), y), hvd.rank(), hvd.size())
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))
    support.fit(network, optimizer, mine, support.BATCH, jit_compile=jit_compile, callbacks=[first])
    expected = normalizing(keras.layers.BatchNormalization(momentum=0.8, fused=False), shape)
    support.fit(expected, keras.optimizers.SGD(0.05), (x.astype("f"), y), hvd.size() * support.BATCH)
    for own, other in zip(network.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, rtol=2e-3, atol=2e-5)
    support.check_equal_on_all_ranks(hvd, network.get_weights())


@on_ranks(1, 2, 3)
def test_metrics_of_uneven_parts(hvd):
    generator = np.random.default_rng(5)
    sizes = [4 * (rank + 1) for rank in range(hvd.size())]
    x = generator.normal(size=(sum(sizes), 4)).astype("f")
    y = (generator.random((len(x), 1)) > 0.4).astype("f")
    start = sum(sizes[: hvd.rank()])
    mine = slice(start, start + sizes[hvd.rank()])

    def make():
        keras.utils.set_random_seed(2)
        network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
        network.compile(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)),
            "binary_crossentropy",
            metrics=[keras.metrics.AUC(name="auc"), "accuracy"],
        )
        return network

    whole = make().evaluate(x, y, batch_size=2, return_dict=True, verbose=0)
    own = hvd.evaluate(make(), x[mine], y[mine], batch_size=2, return_dict=True, verbose=0)
    assert sorted(own) == sorted(whole) == ["accuracy", "auc", "loss"]
    listed = hvd.evaluate(make(), x[mine], y[mine], batch_size=2, verbose=0)
    np.testing.assert_allclose(listed, [own["loss"], own["auc"], own["accuracy"]])
    for key in whole:
        np.testing.assert_allclose(own[key], whole[key], rtol=1e-5)
    even = slice(4 * hvd.rank(), 4 * hvd.rank() + 4)
    history = (
        make()
        .fit(
            x[even],
            y[even],
            batch_size=2,
            verbose=0,
            validation_data=(x[mine], y[mine]),
            callbacks=[
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                hvd.callbacks.MetricAverageCallback(),
            ],
        )
        .history
    )
    for key in whole:
        np.testing.assert_allclose(history[f"val_{key}"][0], whole[key], rtol=1e-5)


@on_ranks(1)
def test_large_batch_optimizers_name_the_ones_of_addons(hvd):
    with pytest.raises(AttributeError, match="TensorFlow Addons"):
        hvd.optimizers.LAMB(0.1)
    assert all(hasattr(hvd, name) for name in dir(hvd))
    assert not hasattr(hvd.optimizers, "LAMB")
