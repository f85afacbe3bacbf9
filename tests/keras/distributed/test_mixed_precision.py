"""Loss scaling: an infinity on one rank only, and every rank skips the same step and holds the same scale."""

import keras
import numpy as np
import pytest

from tests.harness import on_ranks, slow
from tests.keras import support

STEPS = 8
MICRO = 2
ORDERS = ("outside", "inside", "inside_later")


def optimizers(hvd, order, **options):
    """A plain loss scale optimizer and a distributed one."""
    scaling = {"initial_scale": 64.0, "dynamic_growth_steps": 2}
    make = keras.optimizers.LossScaleOptimizer
    plain = make(keras.optimizers.SGD(0.05, momentum=0.9, **options), **scaling)
    inner = keras.optimizers.SGD(0.05, momentum=0.9, **options)
    if order == "outside":
        return plain, hvd.DistributedOptimizer(make(inner, **scaling))
    if order == "inside":
        return plain, make(hvd.DistributedOptimizer(inner), **scaling)
    distributed = make(inner, **scaling)
    hvd.DistributedOptimizer(distributed.inner_optimizer)
    return plain, distributed


def data_with_infinities(hvd, dtype="float64"):
    """Data in which one row of rank 1 only, in the third batch, overflows."""
    x, y = support.data(hvd.size(), dtype, steps=STEPS)
    x[2 * support.BATCH * hvd.size() + 1] = np.inf
    return x, y


def taken(scaling):
    """Steps that were not skipped, accumulating ones included."""
    return scaling.inner_optimizer.variables[0].numpy()


def check(hvd, network, optimizer, plain, arrays):
    """Against the plain optimizer on all the data, which rank 0 trains."""
    assert np.isfinite(support.weights(network)).all()
    if hvd.rank() == 0:
        whole = support.model("float64")
        support.loop(whole, plain, arrays, support.BATCH * hvd.size())
        np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-10)
        assert optimizer.dynamic_scale.numpy() == plain.dynamic_scale.numpy() != 64.0
        assert optimizer.step_counter.numpy() == plain.step_counter.numpy()
        assert taken(optimizer) == taken(plain) == STEPS - 1
    support.check_equal_on_all_ranks(hvd, [*network.variables, *optimizer.variables])


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@on_ranks(2, full=(3,))
def test_infinity_on_one_rank(hvd, order, accumulate, eager):
    options = {"gradient_accumulation_steps": MICRO} if accumulate else {}
    plain, optimizer = optimizers(hvd, order, **options)
    arrays, network = data_with_infinities(hvd), support.model("float64")
    mine = support.shard(arrays, hvd.rank(), hvd.size())
    assert np.isinf(mine[0]).any() == (hvd.rank() == 1)
    support.loop(network, optimizer, mine, support.BATCH, eager=eager)
    check(hvd, network, optimizer, plain, arrays)


@pytest.mark.parametrize("accumulate", [False, True])
@on_ranks(2)
def test_with_our_tape(hvd, accumulate):
    options = {"gradient_accumulation_steps": MICRO} if accumulate else {}
    plain, optimizer = optimizers(hvd, "inside", **options)
    arrays, network = data_with_infinities(hvd), support.model("float64")
    mine = support.shard(arrays, hvd.rank(), 2)
    support.loop(network, optimizer, mine, support.BATCH, tape=hvd.DistributedGradientTape)
    check(hvd, network, optimizer, plain, arrays)


@on_ranks(2)
def test_our_tape_and_a_plain_loss_scale_optimizer(hvd):
    """The tape reduces scaled gradients, so the plain optimizers of all ranks decide alike."""
    plain, _ = optimizers(hvd, "inside")
    other, _ = optimizers(hvd, "inside")
    arrays, network = data_with_infinities(hvd), support.model("float64")
    mine = support.shard(arrays, hvd.rank(), 2)
    support.loop(network, other, mine, support.BATCH, tape=hvd.DistributedGradientTape)
    check(hvd, network, other, plain, arrays)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("order", ["compile", "outside"])
@on_ranks(2, full=(1,))
def test_fit_under_mixed_float16(hvd, order, accumulate):
    options = {"gradient_accumulation_steps": MICRO} if accumulate else {}
    policy = keras.mixed_precision.DTypePolicy("mixed_float16")
    arrays = data_with_infinities(hvd, "float32") if hvd.size() > 1 else support.data(1, steps=STEPS)
    network = support.model(policy)
    optimizer = keras.optimizers.SGD(0.01, **options)
    if order == "outside":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    hvd.DistributedOptimizer(optimizer)
    before = support.weights(network)
    mine = support.shard(arrays, hvd.rank(), hvd.size())
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")  # What compile() looks at, together with the model's own.
    try:
        network.dtype_policy = policy
        support.fit(network, optimizer, mine, support.BATCH)
    finally:
        keras.config.set_dtype_policy(previous)
    scaling = network.optimizer
    assert type(scaling).__mro__[1].__name__ == "DistributedLossScale"
    assert (scaling is optimizer) == (order == "outside")
    skipped = 1 if hvd.size() > 1 else 0
    assert taken(scaling) == STEPS - skipped
    assert scaling.dynamic_scale.numpy() == 2.0 ** (15 - skipped)
    assert np.isfinite(support.weights(network)).all() and np.abs(support.weights(network) - before).max() > 0
    support.check_equal_on_all_ranks(hvd, [*network.variables, *scaling.variables])


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("what", [np.nan, -np.inf])
@on_ranks(2, full=(3,))
def test_a_flight_through_nan(hvd, what, accumulate):
    """Not-a-number on one rank, twice, then many good steps: skipped by all, and the scale grows again."""
    options = {"gradient_accumulation_steps": MICRO} if accumulate else {}
    plain, optimizer = optimizers(hvd, "outside", **options)
    x, y = support.data(hvd.size(), "float64", steps=STEPS)
    for step, rank in ((1, 1), (4, 0)):
        x[step * support.BATCH * hvd.size() + rank] = what
    whole, network = support.model("float64"), support.model("float64")
    support.loop(whole, plain, (x, y), support.BATCH * hvd.size())
    mine = support.shard((x, y), hvd.rank(), hvd.size())
    support.loop(network, optimizer, mine, support.BATCH)
    assert np.isfinite(support.weights(network)).all()
    np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-10)
    assert taken(optimizer) == taken(plain) == STEPS - 2
    assert optimizer.dynamic_scale.numpy() == plain.dynamic_scale.numpy()
    support.check_equal_on_all_ranks(hvd, [*network.variables, *optimizer.variables])


@pytest.mark.parametrize("order", [slow("compile"), "outside", slow("layers_only")])
@on_ranks(2, full=(1, 3))
def test_fit_under_mixed_bfloat16(hvd, order):
    """No loss scale by itself; with one around, it works the same."""
    network = support.model(keras.mixed_precision.DTypePolicy("mixed_bfloat16"))
    whole = support.model(keras.mixed_precision.DTypePolicy("mixed_bfloat16"))
    optimizer, plain = keras.optimizers.SGD(0.02, momentum=0.9), keras.optimizers.SGD(0.02, momentum=0.9)
    if order == "outside":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        plain = keras.optimizers.LossScaleOptimizer(plain)
    hvd.DistributedOptimizer(optimizer)
    arrays = support.data(hvd.size(), steps=STEPS)
    start = support.weights(network)
    previous = keras.config.dtype_policy()
    if order == "compile":
        keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        support.fit(network, optimizer, support.shard(arrays, hvd.rank(), hvd.size()), support.BATCH)
        support.fit(whole, plain, arrays, support.BATCH * hvd.size())
    finally:
        keras.config.set_dtype_policy(previous)
    assert network.optimizer is optimizer and optimizer.iterations.numpy() == STEPS
    way = np.linalg.norm(support.weights(whole) - start)
    assert np.linalg.norm(support.weights(network) - support.weights(whole)) < 0.03 * way
    support.check_equal_on_all_ranks(hvd, [*network.variables, *optimizer.variables])


@on_ranks(2)
def test_a_plain_loss_scale_optimizer_stays_as_it_was(hvd):
    hvd.DistributedOptimizer(keras.optimizers.SGD())
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    assert type(scaling) is keras.optimizers.LossScaleOptimizer
    v = keras.Variable([0.0])
    scaling.apply([[float(hvd.rank()) * 2.0**15]], [v])
    np.testing.assert_allclose(v.numpy(), [-0.1 * hvd.rank()], rtol=1e-6)


@on_ranks(1)
def test_around_several_distributed_optimizers(hvd):
    multi = getattr(keras.optimizers, "MultiOptimizer", None)
    if multi is None:
        pytest.skip("Keras has no MultiOptimizer")
    inner = hvd.DistributedOptimizer(keras.optimizers.SGD())
    v = keras.Variable([0.0])
    several = multi(lambda variable: inner)
    several.build([v])
    with pytest.raises(ValueError, match=r"give the MultiOptimizer to tfddl\.DistributedOptimizer"):
        keras.optimizers.LossScaleOptimizer(several).apply([np.ones(1, "float32")], [v])
