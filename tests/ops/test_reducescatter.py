"""reducescatter against NumPy: values, rows, gradients and errors."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.finite import differences
from tests.ops.support import DTYPES, MODES, array, arrays, call, check, check_close, mean, total

SHAPES = ((3,), (6, 2), (7, 2, 2), (2,), (0,), (4, 0), (0, 3))


def mine(hvd, whole):
    """This rank's rows; `array_split` gives the first parts one more, as reducescatter does."""
    return np.array_split(whole, hvd.size())[hvd.rank()]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@on_ranks(1, 2, 3)
def test_values_and_rows(hvd, dtype, mode):
    for shape in SHAPES:
        parts = arrays(hvd.size(), dtype, shape)
        result = call(mode, lambda x: hvd.reducescatter(x, op=hvd.Sum), parts[hvd.rank()])
        check(result, mine(hvd, total(parts)))
        result = call(mode, hvd.reducescatter, parts[hvd.rank()])
        check_close(result, mine(hvd, mean(parts)))


@pytest.mark.parametrize("rows", [100_003, 1_000_003])
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@on_ranks(2, 3)
def test_more_than_any_piece_has_the_bits_of_allreduce(hvd, dtype, rows):
    generator = np.random.default_rng(hvd.rank())
    x = tf.cast(generator.normal(size=(rows, 3)), dtype)
    whole = hvd.allreduce(x, op=hvd.Sum).numpy()
    np.testing.assert_array_equal(hvd.reducescatter(x, op=hvd.Sum).numpy(), mine(hvd, whole))


@on_ranks(1, 2, 3)
def test_the_input_is_left_alone(hvd):
    x = tf.fill([5, 2], float(hvd.rank() + 1))
    hvd.reducescatter(x, op=hvd.Sum)
    check(x, np.full((5, 2), hvd.rank() + 1, "float32"))


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3)
def test_factors_and_compression(hvd, mode):
    parts = arrays(hvd.size(), "float32", (5, 2))

    def body(x):
        options = {"op": hvd.Sum, "prescale_factor": 0.5, "postscale_factor": 3.0}
        return hvd.reducescatter(x, compression=hvd.Compression.fp16, **options)

    check(call(mode, body, parts[hvd.rank()]), mine(hvd, 1.5 * total(parts)).astype("float32"))


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3)
def test_group(hvd, mode):
    shapes, dtypes = (
        ((5,), (2, 3), (0, 2), (4,), (70_001, 2)),
        ("float32", "float32", "int64", "int64", "float32"),
    )
    members = [arrays(hvd.size(), dtype, shape) for shape, dtype in zip(shapes, dtypes, strict=True)]

    def body(*x):
        return hvd.grouped_reducescatter([*x[:2], None, *x[2:]], op=hvd.Sum)

    results = call(mode, body, *(parts[hvd.rank()] for parts in members))
    assert results.pop(2) is None
    for result, parts in zip(results, members, strict=True):
        check(result, mine(hvd, total(parts)))
    assert hvd.grouped_reducescatter([]) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", ["Sum", "Average"])
@on_ranks(1, 2, 3)
def test_gradient_by_finite_differences(hvd, op, mode):
    size, rank, shape = hvd.size(), hvd.rank(), (4, 2)
    values = arrays(size, "float64", shape)
    weights = np.array_split(array(0, "float64", shape, seed=1), size)

    def body(x, weight):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.reducescatter(x, op=getattr(hvd, op), prescale_factor=0.5, postscale_factor=3.0)
        return tape.gradient(y, x, output_gradients=weight)

    def loss(values):
        reduced = 1.5 * (sum(values) if op == "Sum" else sum(values) / size)
        return sum(np.sum(w * y) for w, y in zip(weights, np.array_split(reduced, size), strict=True))

    result = call(mode, body, values[rank], weights[rank])
    np.testing.assert_allclose(result, differences(rank, values, loss), rtol=1e-9, atol=1e-9)


@on_ranks(1, 2, 3)
def test_gradient_of_a_group_of_which_one_member_is_used(hvd):
    x = [tf.ones([3], tf.bfloat16), tf.ones([5, 2], tf.bfloat16)]
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.grouped_reducescatter(x)
        loss = tf.reduce_sum(y[1]) * 3
    check_close(tape.gradient(loss, x[1]), np.full((5, 2), 3 / hvd.size()).astype(x[1].dtype.as_numpy_dtype))


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2, 3)
def test_second_order(hvd, mode):
    """With y the rows of the sum of x, the loss y^3 has the gradient 3 y^2 on all ranks; its weighted gradient is 6 y n."""
    parts = arrays(hvd.size(), "float64", (4,))

    def body(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(hvd.reducescatter(x, op=hvd.Sum) ** 3)
            first = inner.gradient(loss, x)
        return first, outer.gradient(first, x)

    first, second = call(mode, body, parts[hvd.rank()])
    check_close(first, 3 * total(parts) ** 2)
    check_close(second, 6 * total(parts) * hvd.size())


@on_ranks(1)
def test_what_it_does_not_take(hvd):
    for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        with pytest.raises(ValueError, match=r"supports op=Average, Sum: .* Received"):
            hvd.reducescatter(tf.ones([2]), op=op)
    for call_it in (hvd.reducescatter, lambda x: hvd.grouped_reducescatter([x])):
        with pytest.raises(ValueError, match=r"at least one dimension: .* Received: a scalar"):
            call_it(tf.constant(1.0))
        with pytest.raises(TypeError, match="Received: bool"):
            call_it(tf.constant([True]))
    for compression in (None, "fp16", tf.float16):
        with pytest.raises(TypeError, match=r"compression` is .*Received: compression="):
            hvd.reducescatter(tf.ones([2]), compression=compression)
        with pytest.raises(TypeError, match=r"compression` is .*Received: compression="):
            hvd.grouped_reducescatter([tf.ones([2])], compression=compression)


@on_ranks(2)
def test_static_shape_leaves_the_rows_open(hvd):
    @tf.function
    def scatter(x):
        result = hvd.reducescatter(x)
        assert result.shape.as_list() == [None, 3]
        return result

    check(scatter(tf.ones([4, 3])), np.ones([2, 3], "float32"))
