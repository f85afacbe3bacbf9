"""Local layers and variables: their weights are each rank's own, all others stay equal."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow
from tests.keras import support

MODES = ("eager", "graph", slow("jit"))
RATE = 0.05


def steps(network, arrays):
    """Gradients of one rank's batches, with the loss of `support.fit`."""
    loss = keras.losses.MeanSquaredError(dtype="float64")
    x, y = arrays
    for start in range(0, len(x), support.BATCH):
        with tf.GradientTape() as tape:
            value = loss(y[start : start + support.BATCH], network(x[start : start + support.BATCH]))
        yield tape.gradient(value, network.trainable_variables)


def expected(rank, size, steps_count, scale=True):
    """Every rank's weights by the formula: one model a rank, the first layer's gradients averaged, the last layer's own."""
    arrays = support.data(size, "float64", steps_count)
    networks = [support.model("float64") for _ in range(size)]
    streams = [steps(networks[r], support.shard(arrays, r, size)) for r in range(size)]
    for _ in range(steps_count):
        gradients = [[g.numpy() for g in next(stream)] for stream in streams]
        for r, network in enumerate(networks):
            for index, variable in enumerate(network.trainable_variables):
                mean = sum(each[index] for each in gradients) / size
                own = gradients[r][index] / (size if scale else 1)
                variable.assign_sub(np.float32(RATE) * (mean if index < 2 else own))
    return support.weights(networks[rank])


def check(hvd, network, scale=True):
    """`fit` gives inputs as float32."""
    found = support.weights(network)
    wanted = expected(hvd.rank(), hvd.size(), 3, scale)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)
    first, last = network.layers
    support.check_equal_on_all_ranks(hvd, first.variables)
    kernels = hvd.allgather(tf.reshape(last.kernel, [1, -1]), name="kernels").numpy()
    assert len(np.unique(kernels, axis=0)) == hvd.size()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["layer", "variables", "unscaled"])
@on_ranks(2, full=(1, 3))
def test_one_layer_is_local(hvd, how, mode):
    network = support.model("float64")
    last = network.layers[-1]
    plain = keras.optimizers.SGD(RATE)
    if how == "variables":
        optimizer = hvd.DistributedOptimizer(plain)
        for variable in (last.kernel, last.bias.value):
            optimizer.register_local_var(variable)
    else:
        scale = how == "layer"
        optimizer = hvd.PartialDistributedOptimizer(plain, local_layers=last, scale_local_gradients=scale)
    assert optimizer is plain
    mine = support.shard(support.data(hvd.size(), "float64", 3), hvd.rank(), hvd.size())
    options = {"run_eagerly": mode == "eager", "jit_compile": mode == "jit"}
    support.fit(network, optimizer, mine, support.BATCH, **options)
    check(hvd, network, how != "unscaled")


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("behind", ["plain", "distributed", "loss scale"])
@on_ranks(2)
def test_the_tape(hvd, behind, eager):
    """What the tape leaves alone, a distributed optimizer behind it leaves alone too."""
    network = support.model("float64")
    optimizer = keras.optimizers.SGD(RATE)
    if behind != "plain":
        optimizer = hvd.DistributedOptimizer(optimizer)
    if behind == "loss scale":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, 8.0)
    mine = support.shard(support.data(2, "float64", 3), hvd.rank(), 2)

    def tape(recording):
        return hvd.PartialDistributedGradientTape(recording, local_layers=[network.layers[-1]])

    support.loop(network, optimizer, mine, support.BATCH, tape=tape, eager=eager)
    check(hvd, network)


@pytest.mark.parametrize("how", ["optimizer", "tape"])
@on_ranks(2)
def test_each_rank_has_other_tables(hvd, how):
    """Rank 0 has two, rank 1 has one of another shape, and one layer is the same on both."""
    width = 3 + hvd.rank()
    tables = [keras.layers.Dense(2, use_bias=False, kernel_initializer="ones") for _ in range(2 - hvd.rank())]
    head = keras.layers.Dense(1, kernel_initializer="glorot_uniform")

    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.tables, self.head = tables, head

        def call(self, x):
            return self.head(sum(table(x) for table in self.tables))

        def train_step(self, data):
            if how == "optimizer":
                return super().train_step(data)
            x, y = data
            with hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=tables) as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, [each.value for each in self.trainable_variables])
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    network = Network()
    network(np.ones([1, width], "f"))
    mine = [each.kernel for each in tables]
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
    if how == "optimizer":
        optimizer = hvd.DistributedOptimizer(optimizer)
        for variable in mine:
            optimizer.register_local_var(variable)
    network.compile(optimizer, "mse")
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=mine)
    start = hvd.broadcast(head.kernel.value, 0, name="start").numpy()
    x = np.ones([4, width], "f")
    network.fit(x, np.zeros([4, 1], "f"), batch_size=4, verbose=0, callbacks=[first])
    # One step: rank 0's hidden values are 2 tables * 3, rank 1's are 1 table * 4.
    hidden = [6.0, 4.0]
    outputs = [value * start.sum() for value in hidden]
    slopes = [2 * output for output in outputs]
    kernel = start - RATE * np.mean([slope * value for slope, value in zip(slopes, hidden, strict=True)])
    np.testing.assert_allclose(head.kernel.numpy(), kernel, rtol=1e-4)
    np.testing.assert_allclose(head.bias.numpy(), [-RATE * np.mean(slopes)], rtol=1e-4)
    support.check_equal_on_all_ranks(hvd, head.variables)
    own = 1 - RATE * slopes[hvd.rank()] / 2 * np.broadcast_to(start.T, [width, 2])
    for table in tables:
        np.testing.assert_allclose(table.kernel.numpy(), own, rtol=1e-4)


@pytest.mark.parametrize("accumulate", [None, 2])
@on_ranks(2, full=(3,))
def test_an_infinity_in_a_local_gradient_is_skipped_by_all(hvd, accumulate):
    shared, mine = tf.Variable([1.0]), tf.Variable([1.0])
    inner = keras.optimizers.SGD(1.0, gradient_accumulation_steps=accumulate)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, 2.0)
    hvd.DistributedOptimizer(optimizer).register_local_var(mine)
    optimizer.build([shared, mine])

    @tf.function
    def step(large):
        own = float("inf") if large and hvd.rank() == 1 else 2.0 * hvd.rank()
        optimizer.apply_gradients([(tf.constant([4.0]), shared), (tf.constant([own]), mine)])

    for large in (False, True, False):
        step(large)
    assert float(tf.convert_to_tensor(optimizer.dynamic_scale)) == 1.0
    factor = hvd.rank() / hvd.size()
    # Two steps of gradients scaled by 2 and by 1, or one with their mean.
    whole, own = (-2.0 - 4.0, -factor - 2 * factor) if accumulate is None else (-3.0, -1.5 * factor)
    np.testing.assert_allclose(shared, [1.0 + whole])
    np.testing.assert_allclose(mine, [1.0 + own], rtol=1e-6, atol=1e-6)


@on_ranks(2)
def test_a_global_norm_is_refused(hvd):
    variables = [tf.Variable([1.0]), tf.Variable([1.0])]
    gradients = [tf.constant([1.0 + hvd.rank()])] * 2
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, global_clipnorm=0.5))
    optimizer.apply(gradients, variables)
    optimizer.register_local_var(variables[0])
    with pytest.raises(ValueError, match=r"use clipnorm or clipvalue. Received: global_clipnorm=0.5"):
        optimizer.apply(gradients, variables)
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        y = variables[0] * 2.0 + variables[1]
    tape.register_local_source(variables[0])
    reduced = tape.gradient(y, variables)
    for scaling in (False, True):
        other = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, global_clipnorm=0.5))
        if scaling:
            other = keras.optimizers.LossScaleOptimizer(other)
        with pytest.raises(ValueError, match=r"Received: global_clipnorm=0.5"):
            other.apply(reduced, variables)


@on_ranks(1)
def test_refusals(hvd):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
    with pytest.raises(ValueError, match=r"one variable of Keras or TensorFlow: .* Received: 'kernel'"):
        optimizer.register_local_var("kernel")
    for layers in ("dense", [keras.layers.Dense(1), 3], tf.Variable(1.0)):
        with pytest.raises(ValueError, match=r"a Keras layer or a list of them: .* Received: local_layers="):
            hvd.PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=layers)
    with pytest.raises(TypeError, match=r"layers as local_layers=.*Received: name=<Dense"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(), keras.layers.Dense(1))
