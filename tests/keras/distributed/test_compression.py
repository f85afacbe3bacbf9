"""Compressions that keep their errors in optimizers: `fit` and loops, loss scaling, copies."""

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.gradients.test_compressed import COMPRESSIONS, check_same_bits, values
from tests.harness import on_ranks
from tests.keras import support


@pytest.mark.parametrize("kind", COMPRESSIONS)
@on_ranks(2, full=(1, 3))
def test_converges_to_the_same_minimum(hvd, kind):
    """Of 0.5 |w - target|^2, whose minimum is the mean of the ranks' targets: without feedback rank 1 would not reach it."""
    target = np.random.default_rng(hvd.rank()).normal(size=(30, 40)).astype("float32")
    ranks = [np.random.default_rng(rank).normal(size=(30, 40)) for rank in range(hvd.size())]
    weight = keras.Variable(np.zeros((30, 40), "float32"))
    compression = COMPRESSIONS[kind](hvd)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), compression=compression)

    @tf.function
    def step():
        optimizer.apply([weight.value - target], [weight])

    optimizer.build([weight])
    for _ in range(300):
        step()
    check_same_bits(hvd, [weight])
    np.testing.assert_allclose(weight, np.mean(ranks, axis=0), atol=0.03)


@pytest.mark.parametrize("kind", COMPRESSIONS)
@on_ranks(2, full=(1, 3))
def test_fit_a_loop_and_accumulation_agree(hvd, kind):
    """An update on the mean of two halves of a batch is that of the whole; the state is of updates."""
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    found = []
    for how in ("fit", "loop", "halves", "tape"):
        compression = COMPRESSIONS[kind](hvd)
        network = support.model()
        steps = 2 if how == "halves" else None
        optimizer = keras.optimizers.SGD(0.01, gradient_accumulation_steps=steps)
        if how == "tape":
            support.loop(
                network,
                optimizer,
                mine,
                support.BATCH,
                tape=lambda tape, one=compression: hvd.DistributedGradientTape(tape, compression=one),
            )
        elif how == "fit":
            hvd.DistributedOptimizer(optimizer, compression=compression)
            network.compile(optimizer, "mse")
            network.fit(*mine, batch_size=support.BATCH, shuffle=False, verbose=0)
        else:
            hvd.DistributedOptimizer(optimizer, compression=compression)
            support.loop(network, optimizer, mine, support.BATCH // (steps or 1))
        support.check_equal_on_all_ranks(hvd, [*network.variables, *optimizer.variables])
        found.append((network, compression))
    first, state = found[0]
    # Gradients of other last bits may be rounded to the other side.
    for network, compression in found[1:]:
        np.testing.assert_allclose(support.weights(network), support.weights(first), atol=2e-3)
        for one, expected in zip(compression.variables, state.variables, strict=True):
            np.testing.assert_allclose(one, expected, atol=1e-3 if kind == "power_sgd" else 0.2)


@pytest.mark.parametrize("kind", COMPRESSIONS)
@pytest.mark.parametrize("steps", [None, 2])
@on_ranks(2, full=(3,))
def test_a_skipped_step_and_another_loss_scale(hvd, kind, steps):
    """Residuals are those of the unscaled loss, so training is the same with any scale; rank 1 has an infinity once."""
    arrays = support.data(hvd.size(), steps=8)
    ends = []
    for scale in (1.0, 2.0**12):
        compression = COMPRESSIONS[kind](hvd)
        network = support.model()
        optimizer = keras.optimizers.LossScaleOptimizer(
            hvd.DistributedOptimizer(
                keras.optimizers.SGD(0.01, gradient_accumulation_steps=steps), compression=compression
            ),
            initial_scale=scale,
            dynamic_growth_steps=2,
        )
        x, y = support.shard(arrays, hvd.rank(), hvd.size())
        support.loop(network, optimizer, (x, y), support.BATCH)  # the scale doubles meanwhile
        assert optimizer.dynamic_scale.numpy() > scale
        ends.append(support.weights(network))
        before = values(compression), support.weights(network)
        assert before[0][1].any()
        bad = x[: support.BATCH].copy()
        bad[0, 0] = np.inf if hvd.rank() else 1.0
        support.loop(network, optimizer, (bad, y[: support.BATCH]), support.BATCH)
        for one, expected in zip(
            [*values(compression), support.weights(network)], [*before[0], before[1]], strict=True
        ):
            np.testing.assert_array_equal(one, expected)
        support.check_equal_on_all_ranks(hvd, [*network.variables, *optimizer.variables])
    np.testing.assert_allclose(ends[1], ends[0], atol=2e-3)


@pytest.mark.parametrize("kind", ["class", *COMPRESSIONS])
@on_ranks(2)
def test_copies_begin_without_residuals(hvd, kind, tmp_path):
    """And neither broadcasts nor checks see them."""
    from tfddl.keras.distributed.settings import settings_of

    compression = hvd.Compression.int8 if kind == "class" else COMPRESSIONS[kind](hvd)
    network = support.model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression=compression)
    assert hvd.DistributedOptimizer(optimizer, compression=compression) is optimizer
    mine = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    network.compile(optimizer, "mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    options = {"batch_size": support.BATCH, "verbose": 0, "callbacks": callbacks}
    network.fit(*mine, **options)
    own = settings_of(optimizer).options.compression
    before = values(own)
    assert len(before) and len(optimizer.variables) == 2 and not network.non_trainable_variables
    hvd.broadcast_variables([*network.variables, *optimizer.variables], root_rank=0)
    ranks = hvd.allgather_object([each.tolist() for each in values(own)])
    assert ranks[0] != ranks[1]

    for other in (copy.copy(optimizer), copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        again = settings_of(other).options.compression
        assert again == own and (again is own or not again.variables)
        variables = network.trainable_variables
        expected = [np.array(each) - 0.1 for each in variables]
        other.build(variables)
        other.apply([tf.ones(each.shape) for each in variables], variables)
        for one, wanted in zip(variables, expected, strict=True):
            np.testing.assert_allclose(one, wanted, rtol=1e-4, atol=1e-5)
    path = tmp_path / f"{hvd.rank()}.keras"
    network.save(path)
    loaded = hvd.load_model(path, compression=compression)
    loaded.fit(*mine, **options)
    check_same_bits(hvd, loaded.get_weights())
