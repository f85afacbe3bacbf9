"""Commits hold the residuals of compressed gradients and the outer state of local steps."""

import json
import pickle
import re
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, run_script, slow
from tfddl.gradients import residuals

TFDDLRUN = [sys.executable, "-m", "tfddl.launch.run", "--elastic"]

# No part of a gradient is lost: the applied gradients and the residuals that are left add up to the true ones.
RESIDUALS = """
import json, os, signal, sys
import numpy as np
import tensorflow as tf
import tfddl as hvd
from tfddl.gradients import residuals

hvd.init()
compression = {"int8": hvd.Compression.int8(), "PowerSGD": hvd.PowerSGD(rank=1)}[sys.argv[1]]
weight = tf.Variable(tf.zeros([30, 40]))
state = hvd.elastic.TensorFlowState([weight], compression=compression, step=0, sizes=[])

def rows(step):
    return np.random.default_rng(step).normal(size=[6, 30, 40]).astype("float32")

def step(gradient):
    with hvd.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
        loss = tf.reduce_sum(weight * gradient)
    weight.assign_add(tape.gradient(loss, weight))

@hvd.elastic.run
def train(state):
    while state.step < 9:
        rank, size = hvd.rank(), hvd.size()
        if (state.step, size, rank) == (5, 3, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        step(rows(state.step)[rank::size].mean(axis=0))
        state.step += 1
        state.sizes = [*state.sizes, size]
        if state.step % 4 == 0:
            state.commit()

train(state)
left = residuals.of_the_job(compression)
(unsent,) = [value for name, value in left.items() if name.split(".")[-2] == residuals.UNSENT]
unsent = unsent.ravel()[:1200].reshape(30, 40)
true = sum(rows(each).mean(axis=0) for each in range(9))
largest, difference = (float(np.abs(each).max()) for each in (unsent, weight + unsent - true))
print("done", json.dumps([state.sizes, largest, difference]), flush=True)
"""


@pytest.mark.parametrize("kind", [slow("int8"), slow("PowerSGD")])
def test_residuals_go_on_after_a_loss(kind):
    result = run_script(3, RESIDUALS, kind, launcher=[*TFDDLRUN, "-np", "3"])
    assert result.code == 0, result.output
    done = [json.loads(line) for line in re.findall(r"done (.*)", result.output)]
    for sizes, largest, difference in done:
        assert sizes == [3] * 4 + [2] * 5
        assert largest > 0.01 and difference < 1e-5, done
    assert len(done) == 2


# Each rank's weights go to a target of its own. All four numbers of the state differ by the step of the loss.
LOCAL_STEPS = """
import json, os, signal, sys
import numpy as np
import tensorflow as tf
import tfddl as hvd

hvd.init()
weight = tf.Variable(tf.zeros([3]))
options = {"fragments": 1, "delay": int(sys.argv[1]), "mixing": 0.5 if int(sys.argv[1]) else 0.0}
diloco = hvd.DiLoCo([weight], every=4, **options)
state = hvd.elastic.TensorFlowState([weight], local_steps=diloco, step=0)

@hvd.elastic.run
def train(state):
    while state.step < 18:
        if (state.step, hvd.size(), hvd.rank()) == (11, 3, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        weight.assign_sub(0.1 * (weight - tf.constant([1.0, 2.0, 3.0]) * (1.0 + hvd.rank())))
        diloco.step()
        state.step += 1
        if state.step in (6, 9):
            state.commit()
    diloco.finish()

train(state)
outer = [np.array(each).tolist() for each in diloco.outer_variables]
print("done", json.dumps([weight.numpy().tolist(), outer]), flush=True)
"""


def expected_weights(delay):
    """DiLoCo of one fragment in NumPy: three ranks for nine steps, then two that begin at the weights of rank 0."""
    mixing = 0.5 if delay else 0.0
    target = np.float32([1, 2, 3])
    theta, momentum = np.zeros(3), np.zeros(3)
    weights, gradient = [np.zeros(3)] * 3, None

    def outer_step(gradient, mixing):
        nonlocal theta, momentum
        momentum = 0.9 * momentum - 0.7 * gradient
        theta = theta + 0.9 * momentum - 0.7 * gradient
        return [mixing * each + (1 - mixing) * theta for each in weights]

    for step in range(1, 19):
        weights = [each - 0.1 * (each - target * (1.0 + rank)) for rank, each in enumerate(weights)]
        if delay and gradient is not None and step % 4 == delay:
            weights, gradient = outer_step(gradient, mixing), None
        if step % 4 == 0:
            gradient = theta - np.mean(weights, axis=0)
            if not delay:
                weights, gradient = outer_step(gradient, 0.0), None
        if step == 9:
            weights = [weights[0]] * 2
    if gradient is not None:
        weights = outer_step(gradient, mixing)
    return outer_step(theta - np.mean(weights, axis=0), 0.0)[0], theta


@pytest.mark.parametrize("delay", [slow(0), slow(3)])
def test_local_steps_go_on_after_a_loss(delay):
    """With a delay of 3, the exchange that began at step 8 is under way in the commit of step 9."""
    result = run_script(3, LOCAL_STEPS, str(delay), launcher=[*TFDDLRUN, "-np", "3"])
    assert result.code == 0, result.output
    done = [json.loads(line) for line in re.findall(r"done (.*)", result.output)]
    weights, theta = expected_weights(delay)
    assert len(done) == 2 and done[0] == done[1]
    assert done[0][0] == pytest.approx(weights, rel=1e-5)
    assert done[0][1][0] == pytest.approx(theta, rel=1e-5)


@on_ranks(1, 2, 3)
@pytest.mark.parametrize("kind", ["int8", "PowerSGD"])
def test_a_commit_in_another_program(hvd, kind):
    """`load` in new objects, and `restore` in the old ones, give all ranks the mean residual."""
    import keras

    def new():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((9,)), keras.layers.Dense(20), keras.layers.Dense(1)])
        compression = hvd.Compression.int8() if kind == "int8" else hvd.PowerSGD(rank=1)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), compression=compression), "mse")
        return model, compression, hvd.elastic.KerasState(model)

    def train(model, seed):
        x = np.random.default_rng((seed, hvd.rank())).normal(size=(8, 9)).astype("float32")
        model.train_on_batch(x, x[:, :1])

    model, compression, state = new()
    first = pickle.dumps(state.content())
    for seed in range(3):
        train(model, seed)
    named = {name: np.array(each) for name, each in compression.named_variables().items()}
    of_all = hvd.allgather_object(named)
    expected = residuals.for_any_ranks(
        named,
        lambda name: np.mean([each[name] for each in of_all], axis=0),
        lambda name: np.concatenate([each[name] for each in of_all]),
    )
    state.commit()
    content = pickle.dumps(state.content())

    def check(found):
        for name, each in found.named_variables().items():
            value = np.asarray(each)
            if "unsent_means" in name:
                assert not value.any()
            else:
                np.testing.assert_allclose(value, expected[name], atol=1e-7)

    train(model, 3)
    state.restore()
    check(compression)
    train(model, 3)
    other, other_compression, other_state = new()
    other_state.load(pickle.loads(content))
    train(other, 3)
    assert all(map(np.array_equal, model.get_weights(), other.get_weights()))
    other_state.restore()
    check(other_compression)
    other_state.load(pickle.loads(first))  # made before the first step
    assert all(
        not np.any(each) for name, each in other_compression.named_variables().items() if "unsent" in name
    )


FIT = """
import os, signal
import keras
import numpy as np
import tfddl as hvd

class Kill(keras.callbacks.Callback):
    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if hvd.size() == 2 and self.batches == 21:
            momentum = np.asarray(diloco.outer_variables[-1].numpy())
            print("begins with", diloco.current.progress(), bool(momentum.any()), flush=True)
        if (self.batches, hvd.size(), hvd.rank()) == (23, 3, 1):
            os.kill(os.getpid(), signal.SIGKILL)

hvd.init()
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(480, 8)).astype("float32")
x, y = hvd.data.shard(x, x.sum(axis=1))
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.AdamW(0.01), "mse")
options = {"fragments": 2, "delay": 2, "mixing": 0.5, "compression": hvd.Compression.int8}
diloco = hvd.callbacks.DiLoCo(every=8, **options)
broadcast, elastic = hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.ElasticCallback(commit_every=5)
model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[broadcast, diloco, Kill(), elastic])
weights = [each.tolist() for each in model.get_weights()]
print("equal:", hvd.allgather_object(weights) == [weights] * hvd.size(), flush=True)
"""


@pytest.mark.slow
def test_diloco_in_fit_goes_on_after_a_loss():
    """The commit of batch 20 holds 4 steps of the second round, its fifth exchange, and that this is under way."""
    result = run_script(3, FIT, launcher=[*TFDDLRUN, "-np", "3"])
    assert result.code == 0, result.output
    progress = "{'steps': 5, 'exchanges': 5, 'under_way': [0, 6]}"
    assert result.output.count(f"begins with {progress} True") == 2, result.output
    assert result.output.count("equal: True") == 2


@on_ranks(1)
def test_refusals(hvd):
    weight = tf.Variable([1.0])
    with pytest.raises(TypeError, match=r"choose another name .* Received: local_steps=5"):
        hvd.elastic.TensorFlowState([weight], local_steps=5)
    with pytest.raises(TypeError, match=r"leave others out\. Received: compression=<class .*FP16"):
        hvd.elastic.TensorFlowState([weight], compression=hvd.Compression.fp16)


def new_state(hvd):
    weight, compression = tf.Variable(tf.zeros([20, 50])), hvd.PowerSGD(rank=1)
    return weight, compression, hvd.elastic.TensorFlowState([weight], compression=compression, step=0)


def step(hvd, weight, compression, state):
    gradient = np.random.default_rng((state.step, hvd.rank())).normal(size=weight.shape).astype("float32")
    with hvd.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
        loss = tf.reduce_sum(weight * gradient)
    weight.assign_sub(tape.gradient(loss, weight))
    state.step += 1


@on_ranks(1, 2)
def test_a_commit_that_fails_changes_nothing(hvd, monkeypatch):
    """A rank that is lost before the mean of the residuals must not leave newer weights with older residuals."""
    weight, compression, state = new_state(hvd)
    state._extra._local = hvd.LocalSGD([weight], every=9)
    step(hvd, weight, compression, state)
    state.commit()
    before = pickle.dumps(state.content())
    step(hvd, weight, compression, state)
    state._extra._local.step()

    def fails(_):
        raise tf.errors.UnavailableError(None, None, "a rank is lost")

    with monkeypatch.context() as patch, pytest.raises(tf.errors.UnavailableError):
        patch.setattr(residuals, "of_the_job", fails)
        state.commit()
    assert pickle.dumps(state.content()) == before


@on_ranks(1, 2, 3)
def test_one_rank_has_made_one_commit_more(hvd):
    """All residuals are those of the commit whose weights `sync` takes."""
    weight, compression, state = new_state(hvd)
    step(hvd, weight, compression, state)
    state.commit()
    older = pickle.dumps(state.content())
    step(hvd, weight, compression, state)
    state.commit()
    expected = state.content()[2][2][0]
    if hvd.rank() == 1:
        state.load(pickle.loads(older))
        state._number -= 1
    state.go_on()
    state.sync()
    assert state.step == 2
    for name, variable in compression.named_variables().items():
        np.testing.assert_allclose(variable, expected[name], atol=1e-7)


@on_ranks(1, 2)
def test_residuals_wait_through_a_second_loss(hvd, monkeypatch):
    """int8 makes its variables anew in the step after a loss; a state may be restored once more before it."""
    weight, compression = tf.Variable(tf.zeros([20, 50])), hvd.Compression.int8()
    state = hvd.elastic.TensorFlowState([weight], compression=compression, step=0)
    step(hvd, weight, compression, state)
    state.commit()
    expected = state.content()[2][2][0]
    with monkeypatch.context() as patch:
        patch.setattr("tfddl.ops.compression.basics.size", lambda: 7)
        state.restore()
        assert not compression.variables
    state.restore()
    state.commit()
    np.testing.assert_equal(state.content()[2][2][0], expected)
