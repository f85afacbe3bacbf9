"""Optimizers of Keras 2 against one process with the N-times batch."""

import copy

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras2 import support

keras = tf.keras
new, legacy = keras.optimizers, keras.optimizers.legacy
OPTIMIZERS = {
    "sgd": lambda: new.SGD(0.1),
    "momentum_global_clipnorm": lambda: new.SGD(0.1, momentum=0.9, nesterov=True, global_clipnorm=0.5),
    "adam_clipnorm": lambda: new.Adam(0.05, clipnorm=0.3),
    "adamw_ema": lambda: new.AdamW(0.05, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=3),
    "rmsprop_clipvalue": lambda: new.RMSprop(0.02, momentum=0.5, clipvalue=0.2),
    "adagrad": lambda: new.Adagrad(0.1),
    "nadam": lambda: new.Nadam(0.05),
    "ftrl": lambda: new.Ftrl(0.1),
    "legacy_sgd": lambda: legacy.SGD(0.1, momentum=0.9, decay=0.01),
    "legacy_adam": lambda: legacy.Adam(0.05, clipnorm=0.3),
    "legacy_rmsprop": lambda: legacy.RMSprop(0.02, momentum=0.5, global_clipnorm=0.4),
    "legacy_adagrad": lambda: legacy.Adagrad(0.1, clipvalue=0.1),
}


def whole(make, size, **options):
    network = support.model()
    support.fit(network, make(), support.data(size), size * support.BATCH, **options)
    return network


@pytest.mark.parametrize("name", OPTIMIZERS)
@on_ranks(1, 2, 3)
def test_fit_as_one_process_with_the_big_batch(hvd, name):
    optimizer = OPTIMIZERS[name]()
    assert hvd.DistributedOptimizer(optimizer) is optimizer
    assert optimizer.__class__ is type(OPTIMIZERS[name]())
    network = support.fit_on_all(hvd, optimizer)
    assert network.optimizer is optimizer
    expected = whole(OPTIMIZERS[name], hvd.size())
    np.testing.assert_allclose(support.weights(network), support.weights(expected), rtol=2e-4, atol=2e-6)
    support.check_equal_on_all_ranks(hvd, network.get_weights())


@pytest.mark.parametrize("base", [new.SGD, legacy.SGD])
@on_ranks(2)
def test_a_method_of_the_users_gets_reduced_gradients(hvd, base):
    class Own(base):
        def apply_gradients(self, grads_and_vars):
            super().apply_gradients([(tf.sign(grad), v) for grad, v in grads_and_vars if grad is not None])

    v = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(Own(1.0))
    optimizer.apply_gradients([(None, tf.Variable([0.0])), (tf.constant([3.0 - 4.0 * hvd.rank()]), v)])
    np.testing.assert_allclose(v.numpy(), [-1.0])


@on_ranks(2)
def test_deep_copies_of_legacy_optimizers_are_distributed(hvd):
    """Keras 2 copies its legacy optimizers alone."""
    network = support.fit_on_all(hvd, copy.deepcopy(hvd.DistributedOptimizer(OPTIMIZERS["legacy_sgd"]())))
    again = copy.deepcopy(network.optimizer)
    assert int(again.iterations) == int(network.optimizer.iterations) > 0
    expected = whole(OPTIMIZERS["legacy_sgd"], hvd.size())
    np.testing.assert_allclose(support.weights(network), support.weights(expected), rtol=2e-4, atol=2e-6)
    support.check_equal_on_all_ranks(hvd, network.get_weights())


@pytest.mark.parametrize(
    "options", [{"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 2}], ids=str
)
@pytest.mark.parametrize("name", ["adam_clipnorm", "legacy_adam"])
@on_ranks(2)
def test_other_ways_to_fit(hvd, name, options):
    network = support.model()
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    network.compile(hvd.DistributedOptimizer(OPTIMIZERS[name]()), "mse", **options)
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    network.fit(*mine, batch_size=support.BATCH, shuffle=False, verbose=0, callbacks=[first])
    expected = whole(OPTIMIZERS[name], hvd.size())
    np.testing.assert_allclose(support.weights(network), support.weights(expected), rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("name", ["sgd", "legacy_sgd"])
@pytest.mark.parametrize("op", ["Average", "Sum"])
@on_ranks(1, 2, 3)
def test_loops_with_a_tape_of_tensorflow_or_ours(hvd, name, mode, op):
    """Gradients of a DistributedGradientTape are not reduced a second time."""
    op = getattr(hvd, op)
    for wrap in (lambda tape: tape, lambda tape: hvd.DistributedGradientTape(tape, op=op)):
        weight = tf.Variable(0.0)
        optimizer = hvd.DistributedOptimizer(new.SGD(1.0) if name == "sgd" else legacy.SGD(1.0), op=op)

        def step(weight=weight, optimizer=optimizer, wrap=wrap):
            with tf.GradientTape() as tape:
                loss = weight * (hvd.rank() + 1.0)
            optimizer.apply_gradients([(wrap(tape).gradient(loss, weight), weight)])

        run = step if mode == "eager" else tf.function(step)
        run()
        run()
        expected = (hvd.size() + 1) / 2 * (hvd.size() if op == hvd.Sum else 1)
        np.testing.assert_allclose(weight.numpy(), -2 * expected)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("kind", ["new", "legacy"])
@on_ranks(1, 2, 3)
def test_backward_passes_per_step(hvd, kind, average):
    make = {"new": new, "legacy": legacy}[kind].SGD
    optimizer = hvd.DistributedOptimizer(
        make(0.05, momentum=0.9), backward_passes_per_step=2, average_aggregated_gradients=average
    )
    network = support.fit_on_all(hvd, optimizer)
    x, y = support.data(hvd.size())
    expected = support.model()
    support.fit(
        expected, make(0.05 if average else 0.1, momentum=0.9), (x, y), 2 * hvd.size() * support.BATCH
    )
    np.testing.assert_allclose(support.weights(network), support.weights(expected), rtol=2e-4, atol=2e-6)
    assert int(optimizer.iterations) == support.STEPS


@on_ranks(2)
def test_a_state_that_is_restored_drops_passes(hvd):
    """The sums of a batch after the commit would be part of the first update after it."""
    network = support.model()
    network.compile(hvd.DistributedOptimizer(new.SGD(1.0), backward_passes_per_step=2))
    trained = network.trainable_variables

    def apply(value):
        network.optimizer.apply_gradients([(tf.fill(each.shape, value), each) for each in trained])

    for state in (hvd.elastic.KerasState(network), hvd.elastic.TensorFlowState(trained)):
        state.restore()
        before = support.weights(network)
        apply(100.0)
        state.restore()
        apply(1.0)
        np.testing.assert_array_equal(support.weights(network), before)
        apply(3.0)
        np.testing.assert_allclose(support.weights(network), before - 4.0, rtol=1e-5, atol=1e-6)


@on_ranks(2)
def test_passes_of_sparse_gradients(hvd):
    table = tf.Variable(tf.ones([4, 2]))

    def step(optimizer):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [hvd.rank(), 2]))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    with pytest.raises(ValueError, match="sparse_as_dense=True"):
        step(hvd.DistributedOptimizer(new.SGD(1.0), backward_passes_per_step=2))
    optimizer = hvd.DistributedOptimizer(new.SGD(1.0), backward_passes_per_step=2, sparse_as_dense=True)
    step(optimizer)
    np.testing.assert_array_equal(table.numpy(), np.ones([4, 2]))
    step(optimizer)
    np.testing.assert_allclose(table.numpy()[:, 0], [0, 0, -1, 1])
    rows = hvd.DistributedOptimizer(legacy.SGD(1.0))
    step(rows)
    np.testing.assert_allclose(table.numpy()[:, 0], [-0.5, -0.5, -2, 1])


@on_ranks(1)
def test_what_is_refused(hvd):
    with pytest.raises(TypeError, match="Received: optimizer='sgd'"):
        hvd.DistributedOptimizer("sgd")
    optimizer = hvd.DistributedOptimizer(new.SGD(0.1))
    assert hvd.DistributedOptimizer(optimizer) is optimizer
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Sum)


@on_ranks(2)
def test_process_set_and_local_variables(hvd):
    only = hvd.add_process_set([1])
    mine, shared = tf.Variable(0.0), tf.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(new.SGD(1.0), process_set=only)
    optimizer.apply_gradients([(tf.constant(1.0 + hvd.rank()), shared)])
    np.testing.assert_allclose(shared.numpy(), -1.0 - hvd.rank())
    hvd.remove_process_set(only)
    optimizer = hvd.DistributedOptimizer(legacy.SGD(1.0))
    optimizer.register_local_var(mine)
    shared.assign(0.0)
    optimizer.apply_gradients(
        [(tf.constant(1.0 + hvd.rank()), mine), (tf.constant(1.0 + hvd.rank()), shared)]
    )
    np.testing.assert_allclose(mine.numpy(), -(1.0 + hvd.rank()) / 2)
    np.testing.assert_allclose(shared.numpy(), -1.5)
