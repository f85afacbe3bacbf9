"""op=Adasum against a NumPy model of its tree; its gradient, and training with it."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.finite import differences
from tests.ops.support import MODES, SHAPES, array, arrays, call, check, check_close, numpy_type
from tests.ops.test_mismatch import mismatch, works
from tfddl.ops.dtypes import FLOATS


def pair(a, b):
    """The adaptive sum of two vectors in float64, rounded to their dtype; to 16 bits by way of float32."""
    x, y = a.astype("float64"), b.astype("float64")
    xx, xy, yy = np.vdot(x, x), np.vdot(x, y), np.vdot(y, y)
    combined = (1 - xy / (2 * xx) if xx else 1) * x + (1 - xy / (2 * yy) if yy else 1) * y
    return (combined.astype("float32") if a.dtype.itemsize == 2 else combined).astype(a.dtype)


def adasum(parts):
    """The adaptive sum of one vector for each rank."""
    power = 1 << (len(parts).bit_length() - 1)
    parts = [pair(parts[r], parts[r + power]) if r + power < len(parts) else parts[r] for r in range(power)]
    while len(parts) > 1:
        parts = [pair(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def normal(rank, dtype, shape, seed=0):
    generator = np.random.default_rng([seed, rank])
    return (generator.standard_normal(shape) + 0.3).astype(numpy_type(dtype))


def same_bits(hvd, result):
    words = tf.bitcast(tf.reshape(result, [-1]), {2: tf.int16, 4: tf.int32, 8: tf.int64}[result.dtype.size])
    for other in np.split(hvd.allgather(words).numpy(), hvd.size()):
        np.testing.assert_array_equal(other, words)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", FLOATS)
@on_ranks(1, 2, 3, full=(4, 5))
def test_the_tree(hvd, dtype, mode):
    for shape in SHAPES:
        result = call(mode, lambda x: hvd.allreduce(x, op=hvd.Adasum), normal(hvd.rank(), dtype, shape))
        check_close(result, adasum([normal(rank, dtype, shape) for rank in range(hvd.size())]))
        same_bits(hvd, result)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", FLOATS)
@on_ranks(1, 2, 3, full=(4, 5))
def test_each_member_of_a_group_is_a_vector(hvd, dtype, mode):
    inputs = [normal(hvd.rank(), dtype, shape, seed) for seed, shape in enumerate(SHAPES)]
    results = call(mode, lambda *x: hvd.grouped_allreduce(list(x), op=hvd.Adasum), *inputs)
    for seed, (shape, result) in enumerate(zip(SHAPES, results, strict=True)):
        check_close(result, adasum([normal(rank, dtype, shape, seed) for rank in range(hvd.size())]))
        alone = hvd.allreduce(inputs[seed], op=hvd.Adasum)
        assert alone.numpy().tobytes() == result.numpy().tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@on_ranks(2, 3, full=(4,))
def test_more_than_any_piece(hvd, dtype):
    shape = (1_000_003,)
    result = hvd.allreduce(normal(hvd.rank(), dtype, shape), op=hvd.Adasum)
    check_close(result, adasum([normal(rank, dtype, shape) for rank in range(hvd.size())]))
    same_bits(hvd, result)


@pytest.mark.parametrize("dtype", FLOATS)
@on_ranks(1, 2, 3, full=(4, 5))
def test_equal_orthogonal_and_zero_vectors(hvd, dtype):
    rank, size = hvd.rank(), hvd.size()
    same = normal(7, dtype, (50,))
    check(hvd.allreduce(same, op=hvd.Adasum), same)
    own = np.eye(size)[rank] * (rank + 2)
    check(
        hvd.allreduce(tf.constant(own, dtype), op=hvd.Adasum),
        np.arange(2, size + 2).astype(numpy_type(dtype)),
    )
    only_one = same if rank == size // 2 else np.zeros_like(same)
    check(hvd.allreduce(only_one, op=hvd.Adasum), same)
    check(hvd.allreduce(np.zeros_like(same), op=hvd.Adasum), np.zeros_like(same))


@on_ranks(2, 3)
def test_it_grows_with_the_vectors(hvd):
    x = normal(hvd.rank(), "float32", (100,))
    once, often = hvd.allreduce(x, op=hvd.Adasum), hvd.allreduce(x * np.float32(1024), op=hvd.Adasum)
    np.testing.assert_array_equal(often, once * 1024)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@on_ranks(2, 3)
def test_what_is_not_finite_spoils_its_tensor_and_no_other(hvd, bad):
    x = np.ones(5, "float32")
    x[2] = bad if hvd.rank() == hvd.size() - 1 else 0.0
    spoilt, good = hvd.grouped_allreduce([x, np.ones(5, "float32")], op=hvd.Adasum)
    assert np.isnan(spoilt).all()
    check(good, np.ones(5, "float32"))


@on_ranks(2)
def test_compression(hvd):
    result = hvd.allreduce(
        normal(hvd.rank(), "float32", (20,)), op=hvd.Adasum, compression=hvd.Compression.bf16
    )
    expected = adasum([normal(rank, "float32", (20,)).astype(numpy_type("bfloat16")) for rank in range(2)])
    np.testing.assert_allclose(result, expected.astype("float32"), rtol=1e-2)
    assert result.dtype == tf.float32


@on_ranks(1, 2)
def test_refusals_say_what_to_do(hvd):
    x = tf.ones([2])
    with pytest.raises(ValueError, match=r"multiply its result instead.*Received: \(0\.5, 1\.0\)"):
        hvd.allreduce(x, op=hvd.Adasum, prescale_factor=0.5)
    with pytest.raises(ValueError, match=r"multiply its result instead.*Received: \(1\.0, 2\.0\)"):
        hvd.grouped_allreduce([x], op=hvd.Adasum, postscale_factor=2.0)
    with pytest.raises(TypeError, match=r"op=Adasum supports float16.*Received: int32. Cast it"):
        hvd.allreduce(tf.ones([2], tf.int32), op=hvd.Adasum)
    with pytest.raises(TypeError, match=r"op=Adasum supports.*Received: complex64. .*real"):
        hvd.allreduce(tf.ones([2], tf.complex64), op=hvd.Adasum)
    with pytest.raises(TypeError, match=r"op=Adasum supports.*Received: bool. Cast it"):
        hvd.allreduce(tf.constant([True]), op=hvd.Adasum)
    rows = tf.IndexedSlices(x[:, tf.newaxis], tf.constant([0, 1]), tf.constant([4, 1]))
    with pytest.raises(ValueError, match=r"convert it with tf.convert_to_tensor.*Received: op=Adasum"):
        hvd.allreduce(rows, op=hvd.Adasum)
    with pytest.raises(ValueError, match=r"reducescatter supports op=Average, Sum: .* Received: op='Adasum'"):
        hvd.reducescatter(x, op=hvd.Adasum)
    works(hvd)


@on_ranks(2, 3)
def test_a_rank_with_another_operation(hvd):
    op = hvd.Adasum if hvd.rank() == 0 else hvd.Sum
    mismatch(
        hvd,
        [lambda: hvd.allreduce(tf.ones([2]), op=op, name="adasum.op")],
        "rank 0: op=Adasum",
        "rank 1: op=Sum",
    )


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3, full=(4,))
def test_gradient_by_finite_differences(hvd, mode):
    size, rank = hvd.size(), hvd.rank()
    values, weights = (arrays(size, "float64", (2, 3), seed) for seed in (1, 2))
    values = [value + 0.5 for value in values]

    def body(x, weight):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, _ = hvd.grouped_allreduce([x, tf.ones([2], tf.float64)], op=hvd.Adasum)
        return tape.gradient(y, x, output_gradients=weight)

    def loss(values):
        return np.sum(sum(weights) * adasum(values))

    expected = differences(rank, values, loss)
    np.testing.assert_allclose(call(mode, body, values[rank], weights[rank]), expected, rtol=1e-4, atol=1e-4)


@on_ranks(2, 3)
def test_gradient_where_tensors_are_zero(hvd):
    """The weight of a zero vector is constant, so the cotangents pass as through a sum."""
    x = tf.zeros([3])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allreduce(x, op=hvd.Adasum)
    np.testing.assert_array_equal(tape.gradient(y, x), np.full(3, hvd.size()))


@on_ranks(2, 3)
def test_second_order_by_finite_differences(hvd):
    size, rank = hvd.size(), hvd.rank()
    values, weights = arrays(size, "float64", (3,), 1), arrays(size, "float64", (3,), 2)
    values = [value + 0.5 for value in values]

    def first_order(parts, of, weight):
        """The gradient at rank `of`, in one process by finite differences of the model."""
        return np.sum(
            weight * differences(of, list(parts), lambda moved: np.sum(adasum(moved) ** 2) * size / 2)
        )

    x = tf.constant(values[rank])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(hvd.allreduce(x, op=hvd.Adasum) ** 2) / 2
        first = inner.gradient(y, x)
        loss = tf.reduce_sum(first * weights[rank])
    expected = differences(
        rank, values, lambda moved: sum(first_order(moved, of, weights[of]) for of in range(size))
    )
    np.testing.assert_allclose(outer.gradient(loss, x), expected, rtol=1e-3, atol=1e-3)


def layers():
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])


def batch(rank, step):
    return array(rank, "float32", (6, 4), step) / 9, array(rank, "float32", (6, 1), 100 + step) / 9


def expected_weights(size, steps, rate):
    """Trains in one process, with each rank's gradients combined by the model, variable by variable."""
    model = layers()
    for step in range(steps):
        ranks = []
        for rank in range(size):
            x, y = batch(rank, step)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            ranks.append([gradient.numpy() for gradient in tape.gradient(loss, model.trainable_variables)])
        for variable, *gradients in zip(model.trainable_variables, *ranks, strict=True):
            variable.assign_sub(rate * adasum(gradients))
    return model.get_weights()


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3, full=(4,))
def test_training_with_the_tape(hvd, mode):
    model, optimizer = layers(), keras.optimizers.SGD(0.5)
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum) as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))

    run = tf.function(step) if mode == "graph" else step
    for number in range(5):
        run(*map(tf.constant, batch(hvd.rank(), number)))
    for weights, expected in zip(model.get_weights(), expected_weights(hvd.size(), 5, 0.5), strict=True):
        np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)


@on_ranks(1, 2, 3)
def test_training_with_the_optimizer(hvd):
    model = layers()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), op=hvd.Adasum)
    model.compile(optimizer, "mse", jit_compile=False)
    for number in range(5):
        model.train_on_batch(*batch(hvd.rank(), number))
    for weights, expected in zip(model.get_weights(), expected_weights(hvd.size(), 5, 0.5), strict=True):
        np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)


@on_ranks(1, 2)
def test_rows_of_an_embedding(hvd):
    table = tf.Variable(tf.ones([4, 2]))

    def gradient(**options):
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum, **options) as tape:
            loss = tf.reduce_sum(tf.gather(table, [hvd.rank()]))
        return tape.gradient(loss, table)

    with pytest.raises(
        ValueError, match=r"sparse_as_dense=True.*Received: a tf.IndexedSlices, gradient 0 of 1"
    ):
        gradient()
    expected = np.zeros((4, 2), "float32")
    expected[: hvd.size()] = 1.0  # each rank has a row of its own, so they are orthogonal
    check(gradient(sparse_as_dense=True), expected)


def test_the_documentation_has_the_same_model():
    text = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    (code,) = re.findall(r"```python\n(def pair.*?)```", text, re.S)
    documented = {"np": np}
    exec(code, documented)
    for size in range(1, 10):
        parts = [normal(rank, "float64", (7,)) for rank in range(size)]
        np.testing.assert_array_equal(documented["adasum"](parts), adasum(parts))
