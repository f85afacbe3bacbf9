"""A second `fit` of a model goes on with each rank's own state."""

import keras
import numpy as np

from tests.harness import on_ranks
from tests.keras import support
from tfddl import _compat


def trainer(hvd, optimizer, local=(), built=True):
    """A model of one weight of 0, and a function that takes one step with a gradient of -2 * (rank + 1)."""
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    if built:
        model.build((None, 1))
    optimizer = hvd.DistributedOptimizer(optimizer)
    for variable in local and model.trainable_variables:
        optimizer.register_local_var(variable)
    model.compile(optimizer, "mse")
    kept = model.trainable_variables if local else []
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=kept)

    def step():
        model.fit(np.ones((1, 1)), np.full((1, 1), hvd.rank() + 1.0), verbose=0, callbacks=[callback])

    return model, step


@on_ranks(1, 2, 3)
def test_sums_of_gradients(hvd):
    """The step that the second fit completes has the gradients of the first on all ranks, not those of the root twice."""
    for built in (True, False):
        model, step = trainer(hvd, keras.optimizers.SGD(0.5, gradient_accumulation_steps=2), built=built)
        step()
        assert model.get_weights()[0] == 0
        step()
        mean = np.mean([rank + 1.0 for rank in range(hvd.size())])
        np.testing.assert_allclose(model.get_weights()[0], mean, rtol=1e-6)
        support.check_equal_on_all_ranks(hvd, [*model.variables, *model.optimizer.variables])


@on_ranks(1, 2, 3)
def test_a_root_that_is_ahead(hvd):
    """Ranks that have taken other steps get the root's sums with its count of steps."""
    model, step = trainer(hvd, keras.optimizers.SGD(0.5, gradient_accumulation_steps=2))
    step()
    sums = [each for each in model.optimizer.variables if "accumulator" in each.path]
    if hvd.rank() > 0:
        _compat.step_variable(model.optimizer).assign(0)
        for each in sums:
            each.assign(0 * each)
    step()
    # The root's first gradient on every rank, and each rank's second one.
    mean = np.mean([(1 + rank + 1.0) / 2 for rank in range(hvd.size())])
    np.testing.assert_allclose(model.get_weights()[0], mean, rtol=1e-6)


@on_ranks(1, 2, 3)
def test_momentum_of_local_variables(hvd):
    model, step = trainer(hvd, keras.optimizers.SGD(0.5, momentum=0.5), local=True)
    step()
    (momentum,) = [each for each in model.optimizer.variables if "momentum" in each.path]
    before, weight = momentum.numpy(), model.get_weights()[0]
    gradient = (
        2 * (weight - hvd.rank() - 1) / hvd.size()
    )  # local gradients are divided by the number of ranks
    assert before == (hvd.rank() + 1) / hvd.size()
    step()
    np.testing.assert_allclose(momentum.numpy(), 0.5 * before - 0.5 * gradient, rtol=1e-6)
