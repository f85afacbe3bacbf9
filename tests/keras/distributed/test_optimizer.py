"""DistributedOptimizer: the same object before and after, through copies, files and refusals."""

import copy
import json
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras import support
from tfddl import _compat

COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
}


def reduces(hvd, optimizer):
    """Whether a step with gradients that differ by rank gives equal weights."""
    v = keras.Variable([1.0, 2.0])
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]) * float(hvd.rank() + 1), v)])
    values = hvd.allgather(tf.reshape(v.value, [1, 2]), name="reduces").numpy()
    assert np.abs(v.numpy() - [1.0, 2.0]).max() > 0
    return bool((values == values[0]).all())


@on_ranks(2)
def test_in_place(hvd):
    optimizer = keras.optimizers.Adam(0.25, name="mine")
    v = keras.Variable([1.0])
    optimizer.apply_gradients([(tf.constant([1.0]), v)])
    before = [variable.numpy() for variable in optimizer.variables]
    assert hvd.DistributedOptimizer(optimizer) is optimizer
    assert isinstance(optimizer, keras.optimizers.Adam) and optimizer.__class__ is keras.optimizers.Adam
    assert (
        optimizer.name == "mine"
        and optimizer.learning_rate.numpy() == 0.25
        and optimizer.iterations.numpy() == 1
    )
    for old, variable in zip(before, optimizer.variables, strict=True):
        np.testing.assert_array_equal(old, variable.numpy())
    assert keras.optimizers.get(optimizer) is optimizer
    assert keras.optimizers.serialize(optimizer)["module"] == "keras.optimizers"
    optimizer.learning_rate = 0.5
    assert optimizer.learning_rate.numpy() == 0.5


@on_ranks(2)
def test_twice_is_once(hvd):
    optimizer = hvd.DistributedOptimizer(
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum), op=hvd.Sum
    )
    v = keras.Variable([0.0])
    optimizer.apply_gradients([(tf.constant([1.0]), v)])
    np.testing.assert_allclose(v.numpy(), [-2.0])
    with pytest.raises(ValueError, match=r"distributed already, with op=Sum.*Received: op=Average"):
        hvd.DistributedOptimizer(optimizer)


@pytest.mark.parametrize("how", sorted(COPIES))
@pytest.mark.parametrize("loss_scale", [False, True])
@on_ranks(2)
def test_copies_stay_distributed(hvd, how, loss_scale):
    optimizer = keras.optimizers.Adam(0.25, name="mine")
    if loss_scale:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)
    hvd.DistributedOptimizer(optimizer, op=hvd.Sum, compression=hvd.Compression.bf16)
    other = COPIES[how](COPIES[how](optimizer))
    assert other is not optimizer and isinstance(other, type(optimizer).__mro__[2])
    assert other.learning_rate.numpy() == 0.25
    from tfddl.keras.distributed.settings import settings_of

    assert settings_of(other) is not settings_of(optimizer)
    options = settings_of(other).options
    assert options.op == hvd.Sum and options.compression is hvd.Compression.bf16
    assert reduces(hvd, other) and reduces(hvd, optimizer)
    assert settings_of(other).owner != settings_of(optimizer).owner


@on_ranks(2)
def test_the_test_notices_a_plain_optimizer(hvd):
    assert not reduces(hvd, keras.optimizers.SGD(0.1))


@on_ranks(2)
def test_copies_on_one_rank_only(hvd):
    """Rank 0 saves a copy: the names of the reductions stay the same on all ranks."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    if hvd.rank() == 0:
        copy.deepcopy(optimizer)
    assert reduces(hvd, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    assert reduces(hvd, optimizer)


@on_ranks(2)
def test_a_users_subclass(hvd):
    class Tripled(keras.optimizers.SGD):
        def _clip_gradients(self, grads):
            return [grad * 3 for grad in super()._clip_gradients(grads)]

    optimizer = hvd.DistributedOptimizer(Tripled(1.0))
    v = keras.Variable([0.0])
    optimizer.apply_gradients([(tf.constant([1.0]) * float(hvd.rank()), v)])
    np.testing.assert_allclose(v.numpy(), [-1.5])
    assert isinstance(optimizer, Tripled)


class OwnApply(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        super().apply([None if grad is None else tf.sign(grad) for grad in grads], trainable_variables)


class OwnApplyGradients(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars):
        super().apply_gradients([(tf.sign(grad), v) for grad, v in grads_and_vars if grad is not None])


class OwnUpdate(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        trainable_variables[1].assign_sub(tf.sign(grads[1]))


def loss_scaled(optimizer, **options):
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0, **options)


OWN_METHODS = {
    "apply": (lambda hvd: hvd.DistributedOptimizer(OwnApply(1.0)), -1.0),
    "sum": (lambda hvd: hvd.DistributedOptimizer(OwnApply(1.0), op=hvd.Sum), -1.0),
    "apply_gradients": (lambda hvd: hvd.DistributedOptimizer(OwnApplyGradients(1.0)), -1.0),
    "update": (lambda hvd: hvd.DistributedOptimizer(OwnUpdate(1.0)), -1.0),
    "loss_scale": (lambda hvd: loss_scaled(hvd.DistributedOptimizer(OwnApply(1.0))), -1.0),
    "sharded": (lambda hvd: hvd.ShardedOptimizer(OwnApply(1.0)), -1.0),
    "sharded_pairs": (lambda hvd: hvd.ShardedOptimizer(OwnApplyGradients(1.0)), -1.0),
    # Each batch is normalized by itself, as on one process.
    "passes": (
        lambda hvd: loss_scaled(hvd.DistributedOptimizer(OwnApply(1.0), backward_passes_per_step=2)),
        -2.0,
    ),
}


@pytest.mark.parametrize("kind", OWN_METHODS)
@on_ranks(2)
def test_a_method_of_the_users_gets_reduced_gradients(hvd, kind):
    make, expected = OWN_METHODS[kind]
    optimizer, unused, v = make(hvd), keras.Variable([0.0]), keras.Variable([0.0])
    optimizer.build([unused, v])
    for large in (3.0, 10.0)[: 2 if kind == "passes" else 1]:
        grad = tf.constant([large if hvd.rank() == 0 else -1.0])
        optimizer.apply_gradients([(None, unused), (grad, v)])
    np.testing.assert_allclose(v.numpy(), [expected])


@pytest.mark.skipif(_compat.clips_each_batch(), reason="Keras 3.4 clips before it calls this method")
@on_ranks(1)
def test_an_update_that_goes_past_us_is_noticed(hvd):
    class Own(keras.optimizers.SGD):
        def _backend_apply_gradients(self, grads, trainable_variables):
            pass

    optimizer = hvd.DistributedOptimizer(Own(1.0))
    with pytest.raises(RuntimeError, match=r"Own never calls `_clip_gradients`"):
        optimizer.apply_gradients([(tf.constant([1.0]), keras.Variable([0.0]))])


@on_ranks(2)
def test_clipping_outside_of_apply(hvd):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    mine = tf.constant([1.0, 2.0]) * float(hvd.rank())
    first, none, last = optimizer._clip_gradients([mine, None, mine[:1]])
    assert none is None
    np.testing.assert_allclose(first, [0.5, 1.0])
    np.testing.assert_allclose(last, [0.5])


@on_ranks(1)
def test_refusals(hvd):
    with pytest.raises(ValueError, match=r"op=tfddl.Sum or op=tfddl.Adasum: .* Received: op=Min"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Min)
    for other, remedy in (
        ("adam", "keras.optimizers.get"),
        (None, "keras.optimizers.get"),
        (keras.optimizers.SGD, r"with parentheses: SGD\(\)"),
        (keras.Sequential(), "give it model.optimizer"),
    ):
        with pytest.raises(
            TypeError, match=rf"takes an optimizer of keras 3.*{remedy}.*Received: optimizer="
        ):
            hvd.DistributedOptimizer(other)


LOAD = f"""
import json, sys
sys.modules["tfddl"] = None
import keras, numpy as np, tensorflow as tf
from pathlib import Path

def untrained():
    layers = [keras.Input(({support.FEATURES},)), keras.layers.Dense(8, activation="tanh")]
    return keras.Sequential([*layers, keras.layers.Dense({support.CLASSES})])

def weights(network):
    return [weight.tolist() for weight in network.get_weights()]

directory, found = Path(sys.argv[1]), {{}}
for suffix in ("keras", "h5"):
    network = keras.models.load_model(directory / f"model.{{suffix}}")
    assert type(network.optimizer) is keras.optimizers.Adam, type(network.optimizer)
    assert network.optimizer.learning_rate.numpy() == 0.125
    assert suffix == "h5" or network.optimizer.iterations.numpy() == 3
    found[suffix] = weights(network)
network = untrained()
network.load_weights(directory / "only.weights.h5")
found["weights.h5"] = weights(network)
network = untrained()
tf.train.Checkpoint(model=network).read(str(directory / "checkpoint")).expect_partial()
found["checkpoint"] = weights(network)
artifact = tf.saved_model.load(str(directory / "export"))
found["export"] = artifact.serve(np.ones([2, {support.FEATURES}], "float32")).numpy().tolist()
print("found", json.dumps(found))
"""


@pytest.mark.slow
@on_ranks(2, full=(1,))
def test_saved_loads_without_tfddl(hvd, tmp_path):
    """Whole models in both formats, weights, a checkpoint and an export, in one process without tfddl."""
    network = support.model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.125))
    arrays = support.data(hvd.size(), steps=3)
    support.fit(network, optimizer, support.shard(arrays, hvd.rank(), hvd.size()), support.BATCH)
    if hvd.rank() != 0:
        return
    network.save(tmp_path / "model.keras")
    network.save(tmp_path / "model.h5")
    # Not "model.weights.h5": Keras 3.4 extracts that name out of model.keras beside it, and deletes it.
    network.save_weights(tmp_path / "only.weights.h5")
    tf.train.Checkpoint(model=network, optimizer=optimizer).write(str(tmp_path / "checkpoint"))
    network.export(str(tmp_path / "export"))
    load = [sys.executable, "-c", LOAD, str(tmp_path)]
    ended = subprocess.run(load, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.split("found", 1)[1])
    served = network(np.ones([2, support.FEATURES], "float32"))
    np.testing.assert_allclose(found.pop("export"), served, rtol=1e-5, atol=1e-6)
    assert sorted(found) == ["checkpoint", "h5", "keras", "weights.h5"]
    for weights in found.values():
        for weight, expected in zip(weights, network.get_weights(), strict=True):
            np.testing.assert_array_equal(np.asarray(weight, "float32"), expected)
