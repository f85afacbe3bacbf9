"""LARS, LAMB and NovoGrad: the papers' formulas step by step, and what every optimizer of Keras can do."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow
from tests.keras import support
from tests.keras.formulas import RATE, lamb, lars, novograd
from tests.keras.pairwise import pairwise

PATHS = ["dense/kernel", "dense/bias", "norm/gamma"]
EXCLUDED = ["bias", "norm"]

FORMULAS = {"LARS": lars, "LAMB": lamb, "NovoGrad": novograd}
OPTIONS = {
    "LARS": [{}, {"nesterov": True, "trust_coefficient": 0.1}, {"momentum": 0.5, "epsilon": 0.3}],
    "LAMB": [{}, {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 0.1}],
    "NovoGrad": [{}, {"grad_averaging": True, "beta_1": 0.9}, {"beta_2": 0.5, "epsilon": 0.1}],
}
CASES = [(name, options) for name, several in OPTIONS.items() for options in several]
PARAMETERS = {
    "case": range(len(CASES)),
    "exclude": [False, True],
    "decay": [None, 0.1],
    "way": ["eager", "graph", "jit"],
}


def variables():
    """A layer of weights, one of zeros, and one of two dimensions that gets no gradient in the second step."""
    generator = np.random.default_rng(8)
    values = [generator.normal(size=(4, 3)), np.zeros(3), generator.normal(size=(2, 2))]
    found = []
    for path, value in zip(PATHS, values, strict=True):
        with keras.name_scope(path.split("/")[0]):
            found.append(keras.Variable(value, dtype="float64", name=path.split("/")[1]))
    assert [one.path for one in found] == PATHS
    return found


def gradients(step):
    generator = np.random.default_rng(step)
    return [generator.normal(size=shape) * (step != 2 or shape != (2, 2)) for shape in ((4, 3), (3,), (2, 2))]


@pytest.mark.parametrize("row", pairwise(PARAMETERS), ids=lambda row: "-".join(map(str, row.values())))
@on_ranks(1)
def test_the_papers_formulas(hvd, row):
    """Each pair of an optimizer with its options, patterns, a decay and a way to run it."""
    (name, options), exclude, decay, way = CASES[row["case"]], row["exclude"], row["decay"], row["way"]
    no_adaptation = exclude and name != "NovoGrad"
    patterns = {"exclude_from_weight_decay": EXCLUDED} if exclude else {}
    patterns |= {"exclude_from_layer_adaptation": ["gamma$"]} if no_adaptation else {}
    optimizer = getattr(hvd.optimizers, name)(RATE, weight_decay=decay, **options, **patterns)
    found, states = variables(), [{} for _ in PATHS]
    optimizer.build(found)
    expected = [one.numpy() for one in found]
    apply = lambda grads: optimizer.apply(grads, found)  # noqa: E731
    run = apply if way == "eager" else tf.function(apply, jit_compile=way == "jit")
    for step in range(1, 6):
        run([tf.constant(gradient) for gradient in gradients(step)])
        for index, gradient in enumerate(gradients(step)):
            expected[index] = FORMULAS[name](
                expected[index],
                gradient,
                step,
                states[index],
                0.0 if decay is None or (exclude and index > 0) else decay,
                not (no_adaptation and index == 2),
                **options,
            )
        for one, value in zip(found, expected, strict=True):
            np.testing.assert_allclose(
                one.numpy(), value, rtol=1e-9, atol=1e-12, err_msg=f"{one.path}, step {step}"
            )


@on_ranks(1)
def test_lamb_without_decay_is_keras(hvd):
    if not hasattr(keras.optimizers, "Lamb"):
        pytest.skip("Keras 3.4 has none")
    ours, theirs = hvd.optimizers.LAMB(0.1, epsilon=1e-7), keras.optimizers.Lamb(0.1)
    networks = [support.model("float64") for _ in range(2)]
    for network, optimizer in zip(networks, (ours, theirs), strict=True):
        support.fit(network, optimizer, support.data(1, "float64"), support.BATCH)
    np.testing.assert_allclose(
        *map(support.weights, networks), rtol=1e-4
    )  # Keras rounds its betas to float32


MAKE = {
    "LARS": {"learning_rate": 2.0, "trust_coefficient": 0.05, "weight_decay": 0.01},
    "LAMB": {"learning_rate": 0.05, "weight_decay": 0.1, "exclude_from_weight_decay": ["bias"]},
    "NovoGrad": {"learning_rate": 0.05, "weight_decay": 0.01},
}
KEEPING = {
    "plain": {},
    "ema": {"use_ema": True, "ema_overwrite_frequency": 2, "ema_momentum": 0.5},
    "clipped": {"global_clipnorm": 0.3},
}


@pytest.mark.parametrize("keeping", KEEPING)
@pytest.mark.parametrize("name", MAKE)
@on_ranks(2, full=(1, 3))
def test_distributed_equals_one_process(hvd, name, keeping):
    def make():
        return getattr(hvd.optimizers, name)(**MAKE[name], **KEEPING[keeping])

    arrays, network = support.data(hvd.size(), "float64"), support.model("float64")
    optimizer = hvd.DistributedOptimizer(make())
    support.fit(network, optimizer, support.shard(arrays, hvd.rank(), hvd.size()), support.BATCH)
    support.check_equal_on_all_ranks(hvd, [*network.variables, *optimizer.variables])
    if hvd.rank() == 0:
        whole = support.model("float64")
        start = support.weights(whole)
        support.fit(whole, make(), arrays, support.BATCH * hvd.size())
        assert np.abs(support.weights(whole) - start).max() > 1e-2
        np.testing.assert_allclose(support.weights(network), support.weights(whole), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", [slow("LARS"), slow("LAMB"), "NovoGrad"])
@on_ranks(2)
def test_accumulation_mixed_precision_and_jit(hvd, name):
    """Against the plain step in float32: accumulated halves of a batch, and float16 with a loss scale, compiled."""
    x, y = support.shard(support.data(2), hvd.rank(), 2)
    results = {}
    for case, options in {
        "plain": {},
        "accumulated": {"gradient_accumulation_steps": 2},
        "mixed": {},
    }.items():
        network = support.model(keras.DTypePolicy("mixed_float16" if case == "mixed" else "float32"))
        optimizer = getattr(hvd.optimizers, name)(**MAKE[name], **options)
        if case == "mixed":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=256.0)
        batch = support.BATCH // 2 if case == "accumulated" else support.BATCH
        network.compile(hvd.DistributedOptimizer(optimizer), "mse", jit_compile=case == "mixed")
        network.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
        results[case] = support.weights(network)
        support.check_equal_on_all_ranks(hvd, [*network.variables, *network.optimizer.variables])
    np.testing.assert_allclose(results["accumulated"], results["plain"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results["mixed"], results["plain"], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", MAKE)
@on_ranks(1)
def test_saved_with_its_model(hvd, name, tmp_path):
    """Configuration and slots come back: training goes on as if it had not stopped."""
    options = {"exclude_from_weight_decay": ["bias"], "clipnorm": 1.0}
    optimizer = getattr(hvd.optimizers, name)(**{**MAKE[name], **options})
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()
    assert optimizer.get_config()["exclude_from_weight_decay"] == ["bias"]
    network, arrays = support.model(), support.data(1)
    support.fit(network, optimizer, arrays, support.BATCH)
    network.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is type(optimizer)
    assert loaded.optimizer.get_config() == optimizer.get_config()
    network.save(tmp_path / "model.h5")
    from_h5 = hvd.load_model(tmp_path / "model.h5")
    for model in (network, loaded, from_h5):
        model.fit(*arrays, batch_size=support.BATCH, shuffle=False, verbose=0)
        np.testing.assert_array_equal(support.weights(model), support.weights(network))


@pytest.mark.parametrize("name", MAKE)
@on_ranks(1)
def test_variables_of_16_bits(hvd, name):
    """Three steps are those in float32, as far as bfloat16 can tell."""
    found = []
    for dtype in ("float32", "bfloat16"):
        v = keras.Variable(np.linspace(-1, 2, 6).reshape(2, 3), dtype=dtype, name="kernel")
        optimizer = getattr(hvd.optimizers, name)(**MAKE[name])
        for step in range(3):
            gradient = np.sin(np.arange(6).reshape(2, 3) + step)
            optimizer.apply([tf.constant(gradient, dtype)], [v])
        found.append(tf.cast(v.value, tf.float32).numpy())
    np.testing.assert_allclose(found[1], found[0], atol=0.02)


@pytest.mark.parametrize("name", MAKE)
@on_ranks(2)
def test_sparse_gradients(hvd, name):
    """Rows of one index are added up before the norm is taken."""
    results = []
    for sparse in (False, True):
        v = keras.Variable(np.arange(1.0, 9.0).reshape(4, 2), dtype="float64", name="table")
        optimizer = hvd.DistributedOptimizer(getattr(hvd.optimizers, name)(**MAKE[name]))
        optimizer.build([v])
        rows = tf.constant([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]], tf.float64) * (1 + hvd.rank())
        slices = tf.IndexedSlices(rows, tf.constant([2, 0, 2]), tf.constant([4, 2]))
        optimizer.apply([slices if sparse else tf.convert_to_tensor(slices)], [v])
        results.append(v.numpy())
    np.testing.assert_allclose(*results, rtol=1e-12)


@on_ranks(1)
def test_what_they_refuse_and_momentum_correction(hvd):
    for name in MAKE:
        with pytest.raises(TypeError, match=r"takes regular expressions.*exclude_from_weight_decay='bias'"):
            getattr(hvd.optimizers, name)(exclude_from_weight_decay="bias")
    optimizer = hvd.optimizers.LARS(0.1)
    network = support.model()
    network.compile(optimizer, "mse")
    network.fit(*support.data(1), verbose=0)
    before = optimizer.momentums[0].numpy()
    callback = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.5)
    at_start = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: at_start.append(optimizer.momentums[0].numpy())
    )
    network.fit(*support.data(1), verbose=0, callbacks=[callback, look])
    np.testing.assert_allclose(at_start[0], before / 2, rtol=1e-6)
