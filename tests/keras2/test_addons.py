"""TensorFlow Addons 0.23 on TensorFlow 2.15: every optimizer, and the wrappers that would combine nothing."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras.formulas import RATE, lamb, novograd
from tests.keras2 import support

tfa = pytest.importorskip("tensorflow_addons")
keras = tf.keras
legacy = keras.optimizers.legacy
OPTIMIZERS = {
    "AdaBelief": lambda: tfa.optimizers.AdaBelief(0.05),
    "AdamW": lambda: tfa.optimizers.AdamW(0.01, learning_rate=0.05),
    "COCOB": lambda: tfa.optimizers.COCOB(),
    "ConditionalGradient": lambda: tfa.optimizers.ConditionalGradient(0.99, 10.0),
    "LAMB": lambda: tfa.optimizers.LAMB(0.05, weight_decay=0.01),
    "LazyAdam": lambda: tfa.optimizers.LazyAdam(0.05),
    "Lookahead": lambda: tfa.optimizers.Lookahead(legacy.Adam(0.05), sync_period=3),
    "MovingAverage": lambda: tfa.optimizers.MovingAverage(legacy.SGD(0.1)),
    "NovoGrad": lambda: tfa.optimizers.NovoGrad(0.05, weight_decay=0.01, grad_averaging=True),
    "ProximalAdagrad": lambda: tfa.optimizers.ProximalAdagrad(0.1),
    "RectifiedAdam": lambda: tfa.optimizers.RectifiedAdam(0.05),
    "SGDW": lambda: tfa.optimizers.SGDW(0.01, learning_rate=0.1, momentum=0.9),
    "SWA": lambda: tfa.optimizers.SWA(legacy.SGD(0.1), start_averaging=1, average_period=2),
    "Yogi": lambda: tfa.optimizers.Yogi(0.05),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@on_ranks(1, 2, 3)
def test_fit_as_one_process_with_the_big_batch(hvd, name):
    support.check_as_one_process(hvd, OPTIMIZERS[name])


@pytest.mark.parametrize("name", ["Lookahead", "MovingAverage", "SWA"])
@pytest.mark.parametrize("broadcasts", [True, False])
@on_ranks(1, 2)
def test_wrappers_around_a_distributed_optimizer_are_refused(hvd, name, broadcasts):
    """They make their own updates, and no gradient would be combined."""
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if broadcasts else []
    wrapper = getattr(tfa.optimizers, name)(hvd.DistributedOptimizer(legacy.SGD(0.1)))
    with pytest.raises(ValueError, match=r"write tfddl\.DistributedOptimizer\("):
        support.fit(support.model(), wrapper, support.data(1), support.BATCH, callbacks=callbacks)


@pytest.mark.parametrize("distribute", ["outside", "inside"])
@on_ranks(1, 2, 3)
def test_multi_optimizer(hvd, distribute):
    def make(wrap_outer, wrap_inner):
        network = support.model()
        parts = [
            (wrap_inner(legacy.Adam(0.01)), network.layers[0]),
            (wrap_inner(legacy.SGD(0.1)), network.layers[1]),
        ]
        return network, wrap_outer(tfa.optimizers.MultiOptimizer(parts))

    def plain(optimizer):
        return optimizer

    ours = (hvd.DistributedOptimizer, plain)
    network, optimizer = make(*(ours if distribute == "outside" else ours[::-1]))
    expected, reference = make(plain, plain)
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    support.fit(network, optimizer, mine, support.BATCH, callbacks=callbacks)
    support.fit(expected, reference, support.data(hvd.size()), hvd.size() * support.BATCH)
    np.testing.assert_allclose(support.weights(network), support.weights(expected), rtol=1e-3, atol=1e-5)
    support.check_equal_on_all_ranks(hvd, network.get_weights())


@pytest.mark.parametrize("broadcasts", [True, False])
@pytest.mark.parametrize(
    ("which", "scaled", "message"),
    [
        ([1], False, r"of 2 members, numbers \[0\] \(from 0\) not distributed"),
        ([0], True, r"numbers \[1\]"),
        ([0, 1], True, "LossScaleOptimizer.* would combine no gradients"),
    ],
)
@on_ranks(1, 2)
def test_a_multi_optimizer_that_would_combine_some_gradients_or_none(hvd, which, scaled, message, broadcasts):
    network = support.model()
    members = [legacy.Adam(0.01), legacy.SGD(0.1)]
    for number in which:
        hvd.DistributedOptimizer(members[number])
    optimizer = tfa.optimizers.MultiOptimizer(list(zip(members, network.layers, strict=True)))
    if scaled:
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if broadcasts else []
    with pytest.raises(ValueError, match=message):
        support.fit(network, optimizer, support.data(1), support.BATCH, callbacks=callbacks)


@pytest.mark.parametrize("layer", [0, 1])
@on_ranks(1, 2)
def test_a_member_that_clips_by_a_norm_over_local_gradients_is_refused(hvd, layer):
    """As Keras 3's MultiOptimizer: only the member that has local gradients in its norm."""
    network = support.model()
    members = [
        (legacy.SGD(0.1, global_clipnorm=0.5), network.layers[0]),
        (legacy.SGD(0.1), network.layers[1]),
    ]
    optimizer = hvd.PartialDistributedOptimizer(
        tfa.optimizers.MultiOptimizer(members), local_layers=network.layers[layer]
    )
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    if layer == 0:
        with pytest.raises(ValueError, match=r"use clipnorm or clipvalue. Received: global_clipnorm=0.5"):
            support.fit(network, optimizer, mine, support.BATCH)
    else:
        support.fit(network, optimizer, mine, support.BATCH)
        support.check_equal_on_all_ranks(hvd, network.layers[0].get_weights())


@pytest.mark.parametrize(
    ("name", "formula", "options"),
    [
        ("LAMB", lamb, {}),
        ("LAMB", lamb, {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 0.1}),
        ("NovoGrad", novograd, {"beta_1": 0.95, "beta_2": 0.98, "epsilon": 1e-8}),
        ("NovoGrad", novograd, {"epsilon": 0.1, "grad_averaging": True, "beta_1": 0.9, "beta_2": 0.5}),
    ],
)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_addons_follow_the_formulas_that_ours_are_tested_with(name, formula, options, decay):
    """So that a program that moves to Keras 3 finds the same optimizer in `hvd.optimizers`."""
    generator = np.random.default_rng(8)
    weights = generator.normal(size=(4, 3))
    variable, state = tf.Variable(weights), {}
    optimizer = getattr(tfa.optimizers, name)(RATE, weight_decay=decay, **options)
    for step in range(1, 6):
        gradient = generator.normal(size=(4, 3))
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
        weights = formula(weights, gradient, step, state, decay, True, **options)
        np.testing.assert_allclose(variable.numpy(), weights, rtol=1e-5, err_msg=f"step {step}")
