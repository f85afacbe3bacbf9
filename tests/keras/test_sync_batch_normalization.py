"""SyncBatchNormalization: N ranks compute what plain BatchNormalization does with all their rows in one batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, run_script, slow
from tests.keras import support
from tests.sets.support import added
from tests.xla.support import jit, recorded
from tfddl import runtime

CHANNELS = 4
# Rows of each rank: equal, uneven, and a rank without any.
ROWS = {"equal": [3, 3, 3], "uneven": [2, 5, 1], "empty": [4, 0, 3]}
SHAPES = {"rows": (), "images": (2, 3)}


def inputs(ranks, rows, shape=(), dtype="float64", axis=-1):
    """Each rank's batch, with means and spreads of its own."""
    generator = np.random.default_rng(5)
    parts = []
    for rank in range(ranks):
        part = generator.normal(3 + rank, 1 + rank, [rows[rank], *shape, CHANNELS]).astype(dtype)
        parts.append(np.moveaxis(part, -1, axis) if axis != -1 else part)
    return parts


def run(layer, x, weight, mask=None, wrap=tf.function):
    """One step of training: outputs, the gradients of a loss that weighs them, and the moving statistics."""

    @wrap
    def step(x, weight):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True, **({} if mask is None else {"mask": tf.constant(mask)}))
            loss = tf.reduce_sum(tf.cast(y, weight.dtype) ** 2 * weight)
        return y, tape.gradient(loss, [x, *(variable.value for variable in layer.trainable_variables)])

    y, (dx, *others) = step(tf.constant(x), tf.constant(weight))
    return y.numpy(), dx.numpy(), [value.numpy() for value in others], layer.get_weights()[2:]


def compare(hvd, layer, plain, parts, masks=None, ranks=None, rtol=1e-9, wrap=tf.function):
    """Compares this rank's step with its part of one process's step."""
    ranks = list(range(hvd.size())) if ranks is None else ranks
    index = ranks.index(hvd.rank())
    whole = np.concatenate(parts)
    weight = np.random.default_rng(6).normal(size=whole.shape).astype(whole.dtype)
    start = sum(len(part) for part in parts[:index])
    rows = slice(start, start + len(parts[index]))
    for one in (layer, plain):
        one.build((None, *whole.shape[1:]))
        one.set_weights(
            [*(np.linspace(0.5, 2, len(w)) for w in one.get_weights()[:2]), *one.get_weights()[2:]]
        )
    mask = None if masks is None else masks[index]
    y, dx, gradients, moving = run(layer, parts[index], weight[rows], mask, wrap)
    all_masks = None if masks is None else np.concatenate(masks)
    expected_y, expected_dx, expected_gradients, expected_moving = run(plain, whole, weight, all_masks)
    tolerance = {"rtol": rtol, "atol": rtol}
    np.testing.assert_allclose(y, expected_y[rows], **tolerance)
    np.testing.assert_allclose(dx, expected_dx[rows], **tolerance)
    np.testing.assert_allclose(moving, expected_moving, **tolerance)
    for mine, expected in zip(
        gradients, expected_gradients, strict=True
    ):  # of gamma and beta: this rank's share
        name = "test.share"
        total = hvd.allreduce(tf.constant(mine), op=hvd.Sum, name=name, process_set=layer.process_set)
        np.testing.assert_allclose(total.numpy(), expected, **tolerance)
    return moving


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", ROWS)
@on_ranks(2, full=(1, 3))
def test_equal_to_one_process(hvd, rows, shape):
    parts = inputs(hvd.size(), ROWS[rows], SHAPES[shape])
    layer, plain = (
        kind(dtype="float64") for kind in (hvd.SyncBatchNormalization, keras.layers.BatchNormalization)
    )
    compare(hvd, layer, plain, parts)
    support.check_equal_on_all_ranks(hvd, layer.non_trainable_variables)


@on_ranks(2, full=(1, 3))
def test_the_comparison_notices_statistics_of_one_rank(hvd):
    """Guards the tests above: a layer that is not synchronized fails them."""
    layer, plain = (keras.layers.BatchNormalization(dtype="float64") for _ in range(2))
    layer._process_set = layer.process_set = hvd.global_process_set
    parts = inputs(hvd.size(), ROWS["equal"])
    if hvd.size() == 1:
        compare(hvd, layer, plain, parts)
    else:
        with pytest.raises(AssertionError):
            compare(hvd, layer, plain, parts)


@pytest.mark.parametrize("rows", ["uneven", "empty"])
@on_ranks(2, full=(1,))
def test_compiled_by_xla(hvd, rows):
    parts = inputs(hvd.size(), ROWS[rows], (2, 3))
    layer, plain = (
        kind(dtype="float64") for kind in (hvd.SyncBatchNormalization, keras.layers.BatchNormalization)
    )
    compare(hvd, layer, plain, parts, wrap=jit)


@on_ranks(2, full=(1, 3))
def test_eager(hvd):
    parts = inputs(hvd.size(), ROWS["uneven"])
    layer, plain = (
        kind(dtype="float64") for kind in (hvd.SyncBatchNormalization, keras.layers.BatchNormalization)
    )
    compare(hvd, layer, plain, parts, wrap=lambda function: function)


@pytest.mark.parametrize("axis", [1, 2, -1])
@on_ranks(2)
def test_axis_and_missing_gamma(hvd, axis):
    parts = inputs(2, ROWS["uneven"], (2, 3), axis=axis)
    options = {"axis": axis, "dtype": "float64", "scale": False, "momentum": 0.5, "epsilon": 0.1}
    compare(hvd, hvd.SyncBatchNormalization(**options), keras.layers.BatchNormalization(**options), parts)


@pytest.mark.parametrize("axis", [1, -1])
@on_ranks(2, full=(1, 3))
def test_mask(hvd, axis):
    """What is masked does not count, not even a NaN; with axis=1 each step of time has a count of its own."""
    rows = ROWS["uneven"]
    parts = inputs(hvd.size(), rows, (5,))
    masks = [np.arange(5) < 2 + np.arange(count)[:, None] % 3 for count in rows[: hvd.size()]]
    masks[0][0] = False, *[True] * 4
    # One process adds Keras' epsilon of 1e-7 to the count.
    options = {"axis": axis, "dtype": "float64"}
    layer, plain = hvd.SyncBatchNormalization(**options), keras.layers.BatchNormalization(**options)
    moving = compare(hvd, layer, plain, parts, masks, rtol=1e-5)
    spoiled = [np.where(mask[..., None], part, np.nan) for part, mask in zip(parts, masks, strict=True)]
    again = hvd.SyncBatchNormalization(**options)
    y, *_ = run(again, spoiled[hvd.rank()], np.ones_like(parts[hvd.rank()]), masks[hvd.rank()])
    assert np.isfinite(y[masks[hvd.rank()]]).all()
    np.testing.assert_array_equal(again.get_weights()[2:], moving)


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
@on_ranks(2, full=(1, 3))
def test_statistics_of_16_bits_are_float32(hvd, dtype):
    """Sums of squares beyond float16, and a spread that bfloat16 does not show beside the mean."""
    parts = [part.astype("float32") for part in inputs(hvd.size(), ROWS["uneven"], (40,))]
    compute = dtype.removeprefix("mixed_")
    parts = [np.asarray(tf.cast(part * 60 + 100, compute)) for part in parts]
    layer = hvd.SyncBatchNormalization(dtype=dtype, momentum=0.0)
    y = layer(tf.constant(parts[hvd.rank()]), training=True)
    assert y.dtype == compute and layer.moving_mean.dtype == "float32"
    whole = np.concatenate(parts).astype("float64")
    np.testing.assert_allclose(layer.moving_mean, whole.mean((0, 1)), rtol=1e-6)
    np.testing.assert_allclose(layer.moving_variance, whole.var((0, 1)), rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "case"),
    [("float64", "plain"), slow("float64", "jit"), slow("float32", "mask"), ("mixed_float16", "plain")],
)
@on_ranks(2, full=(1, 3))
def test_a_mean_far_from_zero(hvd, dtype, case):
    """A mean as many deviations away as the dtype shows: E[x^2] - E[x]^2 would have no correct digit."""
    far = {"float64": 1e9, "float32": 1e6, "mixed_float16": 1e3}[dtype]
    compute = dtype.removeprefix("mixed_")
    parts = [(part + far).astype(compute) for part in inputs(hvd.size(), [50, 70, 60], (2,))]
    kept = [np.arange(2) < 1 + np.arange(len(part))[:, None] % 2 for part in parts]
    counted = [part[mask] for part, mask in zip(parts, kept, strict=True)] if case == "mask" else parts
    layer = hvd.SyncBatchNormalization(momentum=0.0, dtype=dtype)
    layer.build((None, 2, CHANNELS))
    options = {"mask": tf.constant(kept[hvd.rank()])} if case == "mask" else {}
    call = tf.function(lambda x: layer(x, training=True, **options), jit_compile=case == "jit" or None)
    call(tf.constant(parts[hvd.rank()]))
    whole = np.concatenate([part.reshape(-1, CHANNELS) for part in counted]).astype("float64")
    shifted = whole - far
    np.testing.assert_allclose(layer.moving_variance, shifted.var(0), rtol=1e-5)
    np.testing.assert_allclose(layer.moving_mean, whole.mean(0), rtol=1e-6)


@on_ranks(2, full=(1, 3))
def test_gradient_where_the_mean_is_far(hvd):
    """Against the formula, from distances to the mean: one process's own digits are used up."""
    parts = inputs(hvd.size(), [5, 7, 6])
    layer = hvd.SyncBatchNormalization(dtype="float64", epsilon=0.5)
    weights = np.random.default_rng(6).normal(size=np.concatenate(parts).shape)
    start = sum(map(len, parts[: hvd.rank()]))
    mine = slice(start, start + len(parts[hvd.rank()]))
    far = tf.constant(parts[hvd.rank()] + 1e7)
    with tf.GradientTape() as tape:
        tape.watch(far)
        loss = tf.reduce_sum(layer(far, training=True) * weights[mine])
    near = np.concatenate([(part + 1e7) - 1e7 for part in parts])
    deviation = np.sqrt(near.var(0) + 0.5)
    normal = (near - near.mean(0)) / deviation
    expected = (weights - weights.mean(0) - normal * (weights * normal).mean(0)) / deviation
    np.testing.assert_allclose(tape.gradient(loss, far), expected[mine], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", ["eager", "graph", slow("jit")])
@on_ranks(2, full=(1, 3))
def test_second_derivative(hvd, mode):
    """A gradient penalty: other ranks' rows have a part in the derivative of a gradient, too."""
    parts = inputs(hvd.size(), ROWS["uneven"])
    whole = np.concatenate(parts)
    weights = np.random.default_rng(6).normal(size=whole.shape)

    def penalty(layer, x, weights):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(layer(x, training=True) * weights)
            slope = inner.gradient(loss, x)
            squared = tf.reduce_sum(slope**2)
        return outer.gradient(squared, x)

    wrap = {"eager": lambda function: function, "graph": tf.function, "jit": jit}[mode]
    layer, plain = (
        kind(dtype="float64") for kind in (hvd.SyncBatchNormalization, keras.layers.BatchNormalization)
    )
    for one in (layer, plain):
        one.build(whole.shape)
    start = sum(map(len, parts[: hvd.rank()]))
    mine = slice(start, start + len(parts[hvd.rank()]))
    found = wrap(penalty)(layer, tf.constant(parts[hvd.rank()]), tf.constant(weights[mine]))
    expected = penalty(plain, tf.constant(whole), tf.constant(weights))
    np.testing.assert_allclose(found, expected[mine], rtol=1e-8, atol=1e-10)


@on_ranks(2, full=(3,))
def test_process_set(hvd):
    """The members alone; another rank normalizes by its own set."""
    groups = {2: [[0], [1]], 3: [[0, 2], [1]]}[hvd.size()]
    with added(hvd, *groups) as sets:
        mine = next(one for one in sets if one.included())
        parts = inputs(3, ROWS["uneven"])
        options = {"dtype": "float64"}
        layer = hvd.SyncBatchNormalization(process_set=mine, **options)
        chosen = [parts[rank] for rank in mine.ranks]
        compare(hvd, layer, keras.layers.BatchNormalization(**options), chosen, ranks=mine.ranks)
        again = hvd.SyncBatchNormalization.from_config(layer.get_config())
        assert layer.get_config()["process_set"] == mine.ranks and again.process_set is mine
    with pytest.raises(ValueError, match="part of the job"):
        layer(chosen[0], training=True)
    with pytest.raises(ValueError, match=r"part of the job.*ranks=\[0\]"):
        hvd.SyncBatchNormalization(process_set=[0])(chosen[0], training=True)


def network(normalization, dtype="float64", seed=7):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((support.FEATURES,), dtype=dtype),
            keras.layers.Dense(8, dtype=dtype),
            normalization(dtype=dtype, name="first"),
            keras.layers.Activation("tanh", dtype=dtype),
            normalization(dtype=dtype, name="second"),
            keras.layers.Dense(support.CLASSES, dtype=dtype),
        ]
    )


@pytest.mark.parametrize("compiled", [False, slow(True)], ids=["plain", "jit"])
@on_ranks(2, full=(1, 3))
def test_fit_equals_one_process(hvd, compiled):
    """Two synchronized layers in one model; then inference, which no other rank takes part in."""
    arrays = support.data(hvd.size(), "float64")
    whole, mine = (
        network(keras.layers.BatchNormalization),
        network(hvd.SyncBatchNormalization, seed=7 + hvd.rank()),
    )
    x, y = support.shard(arrays, hvd.rank(), hvd.size())

    def fit(model, optimizer, x, y, batch, jit_compile, **options):
        model.compile(optimizer, keras.losses.MeanSquaredError(dtype="float64"), jit_compile=jit_compile)
        model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0, **options)

    fit(whole, keras.optimizers.SGD(0.05, momentum=0.9), *arrays, support.BATCH * hvd.size(), False)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    with recorded() as names:
        fit(mine, optimizer, x, y, support.BATCH, compiled, callbacks=[broadcast])
    assert sum("SyncBatchNormalization" in name for name in names) == 2 * 2 * 2 * support.STEPS
    np.testing.assert_allclose(support.weights(mine), support.weights(whole), rtol=1e-8, atol=1e-10)
    support.check_equal_on_all_ranks(hvd, mine.variables)
    if hvd.rank() == 0:
        requests = runtime.stats()["requests"]
        predicted = mine.predict(arrays[0], verbose=0)
        mine.layers[1].trainable = False
        mine.layers[1](np.ones([2, 8]), training=True)
        assert runtime.stats()["requests"] == requests
        np.testing.assert_allclose(predicted, whole.predict(arrays[0], verbose=0), rtol=1e-6, atol=1e-8)


@on_ranks(2, full=(1,))
def test_what_it_refuses(hvd):
    for options, message in (
        ({"synchronized": True}, "synchronized=True"),
        ({"fused": True}, "Received: fused=True"),
        ({"fused": None}, "Received: fused=None"),
    ):
        with pytest.raises(ValueError, match=message):
            hvd.SyncBatchNormalization(**options)
    with pytest.raises(TypeError, match=r"Received: process_set='all'"):
        hvd.SyncBatchNormalization(process_set="all")
    layer = hvd.SyncBatchNormalization(fused=False, synchronized=False)
    assert layer.name.startswith("sync_batch_normalization")
    assert layer.get_config().keys() == keras.layers.BatchNormalization().get_config().keys()


LOAD = """
import sys
sys.modules["tfddl"] = None  # as where it is not installed
import keras, numpy as np

class SyncBatchNormalization(keras.layers.BatchNormalization):
    pass

for suffix in (".keras", ".h5"):
    custom = {"tfddl>SyncBatchNormalization": SyncBatchNormalization}
    model = keras.models.load_model(sys.argv[1] + suffix, custom_objects=custom, compile=False)
    assert type(model.layers[1]) is SyncBatchNormalization
    y = model.predict(np.load(sys.argv[1] + ".x.npy"), verbose=0)
    np.testing.assert_allclose(y, np.load(sys.argv[1] + ".y.npy"), rtol=1e-6)
print("loaded")
"""


@pytest.mark.slow
@on_ranks(1)
def test_loaded_here_and_without_tfddl(hvd, tmp_path):
    model = network(hvd.SyncBatchNormalization, "float32")
    x, y = support.data(1)
    support.fit(model, keras.optimizers.SGD(0.1), (x, y), support.BATCH)
    path = str(tmp_path / "model")
    np.save(path + ".x.npy", x)
    np.save(path + ".y.npy", model.predict(x, verbose=0))
    for suffix in (".keras", ".h5"):
        model.save(path + suffix)
        again = keras.models.load_model(path + suffix)
        assert type(again.layers[1]) is hvd.SyncBatchNormalization
        np.testing.assert_array_equal(support.weights(again), support.weights(model))
    plain = network(keras.layers.BatchNormalization, "float32")
    plain.set_weights(model.get_weights())
    np.testing.assert_array_equal(support.weights(plain), support.weights(model))
    result = run_script(0, LOAD, path)
    assert result.code == 0 and "loaded" in result.output, result.output
