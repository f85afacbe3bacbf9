"""allreduce and grouped_allreduce against NumPy."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.support import (
    DTYPES,
    FLOATS,
    INTEGERS,
    MODES,
    SHAPES,
    array,
    arrays,
    call,
    check,
    check_close,
    mean,
    numpy_type,
    total,
)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@on_ranks(1, 2, 3)
def test_sum(hvd, dtype, mode):
    for shape in SHAPES:
        result = call(mode, lambda x: hvd.allreduce(x, op=hvd.Sum), array(hvd.rank(), dtype, shape))
        check(result, total(arrays(hvd.size(), dtype, shape)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@on_ranks(1, 2, 3)
def test_average_is_the_default(hvd, dtype, mode):
    for shape in SHAPES:
        result = call(mode, hvd.allreduce, array(hvd.rank(), dtype, shape))
        check_close(result, mean(arrays(hvd.size(), dtype, shape)))


@pytest.mark.parametrize("dtype", INTEGERS)
@on_ranks(2, 3)
def test_integer_average_truncates_toward_zero(hvd, dtype):
    values = np.arange(-7, 8, dtype=dtype)
    result = hvd.allreduce(values if hvd.rank() == 0 else np.zeros_like(values), op=hvd.Average)
    check(result, np.trunc(values / hvd.size()).astype(dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64"])
@on_ranks(1, 2, 3)
def test_more_than_any_chunk(hvd, dtype):
    shape = (3_000_017,)
    result = hvd.allreduce(array(hvd.rank(), dtype, shape), op=hvd.Sum)
    check(result, total(arrays(hvd.size(), dtype, shape)))


@on_ranks(2, 3)
def test_all_ranks_get_the_same_bits(hvd):
    generator = np.random.default_rng(hvd.rank())
    result = hvd.allreduce(generator.standard_normal(100_003).astype("float32"), op=hvd.Average)
    bits = result.numpy().view("int32")
    for other in np.split(hvd.allgather(bits).numpy(), hvd.size()):
        np.testing.assert_array_equal(other, bits)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@on_ranks(3)
def test_small_floats_accumulate_in_float32(hvd, dtype):
    large = 2.0 ** (np.finfo(numpy_type(dtype)).nmant + 1) if dtype == "float16" else 256.0
    value = np.array([large, 1.0, 1.0])[hvd.rank()]  # Added one by one in 16 bits, both ones vanish.
    result = hvd.allreduce(tf.constant([value], dtype), op=hvd.Sum)
    assert result.numpy().astype("float64") == large + 2


@on_ranks(2, 3)
def test_integers_wrap(hvd):
    largest = np.iinfo("int32").max
    result = hvd.allreduce(tf.constant([largest if hvd.rank() == 0 else 1]), op=hvd.Sum)
    assert result.numpy()[0] == np.iinfo("int32").min + hvd.size() - 2


@on_ranks(2)
def test_nan_and_infinity_pass(hvd):
    result = hvd.allreduce(tf.constant([[np.nan, np.inf, 1.0], [1.0, 1.0, 1.0]][hvd.rank()]), op=hvd.Sum)
    np.testing.assert_array_equal(result.numpy(), [np.nan, np.inf, 2.0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", FLOATS)
@on_ranks(1, 2, 3)
def test_scale_factors(hvd, dtype, mode):
    def scaled(x):
        return hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)

    expected = 1.5 * total(arrays(hvd.size(), dtype)).astype("float64")
    check_close(call(mode, scaled, array(hvd.rank(), dtype)), expected.astype(numpy_type(dtype)))


@pytest.mark.parametrize("dtype", INTEGERS)
@on_ranks(1, 2, 3)
def test_scale_factors_truncate_integers(hvd, dtype):
    x = array(hvd.rank(), dtype, (50,))
    parts = [np.trunc(part * 0.5).astype(dtype) for part in arrays(hvd.size(), dtype, (50,))]
    check(hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), total(parts))
    expected = np.trunc(total(arrays(hvd.size(), dtype, (50,))) * 0.5).astype(dtype)
    check(hvd.allreduce(x, op=hvd.Sum, postscale_factor=0.5), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@on_ranks(1, 2, 3)
def test_group(hvd, dtype, mode):
    inputs = [array(hvd.rank(), dtype, shape, seed) for seed, shape in enumerate(SHAPES)]
    sums = call(mode, lambda *x: hvd.grouped_allreduce(list(x), op=hvd.Sum), *inputs)
    means = call(mode, lambda *x: hvd.grouped_allreduce(list(x)), *inputs)
    assert len(sums) == len(means) == len(inputs)
    for seed, shape in enumerate(SHAPES):
        check(sums[seed], total(arrays(hvd.size(), dtype, shape, seed)))
        check_close(means[seed], mean(arrays(hvd.size(), dtype, shape, seed)))


@on_ranks(2)
def test_an_empty_group_is_returned_as_it_is(hvd):
    assert list(hvd.grouped_allreduce([])) == []


@on_ranks(1, 2)
def test_many_members(hvd):
    inputs = [tf.fill([1 + i % 5], float(i + hvd.rank())) for i in range(500)]
    for i, result in enumerate(hvd.grouped_allreduce(inputs, op=hvd.Sum)):
        expected = i * hvd.size() + sum(range(hvd.size()))
        check(result, np.full([1 + i % 5], expected, "float32"))


@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
@on_ranks(1, 2)
def test_compression_keeps_dtype_and_exact_values(hvd, compression):
    for dtype in DTYPES:
        result = hvd.allreduce(
            array(hvd.rank(), dtype), op=hvd.Sum, compression=getattr(hvd.Compression, compression)
        )
        check(result, total(arrays(hvd.size(), dtype)))


@on_ranks(2)
def test_unknown_shape_in_a_graph(hvd):
    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def reduce(x):
        return hvd.allreduce(x, op=hvd.Sum)

    for shape in SHAPES:
        check(reduce(array(hvd.rank(), "float32", shape)), total(arrays(hvd.size(), "float32", shape)))


@on_ranks(1, 2)
def test_average_argument_is_deprecated(hvd):
    x = array(hvd.rank(), "float32")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(hvd.allreduce(x, average=False), total(arrays(hvd.size(), "float32")))
    assert [(each.category, each.filename) for each in caught] == [(DeprecationWarning, __file__)] * (
        hvd.rank() == 0
    )
    with pytest.raises(ValueError, match="op"):
        hvd.allreduce(x, average=True, op=hvd.Sum)


@pytest.mark.parametrize("op", [-1, 17, "Sum"])
@on_ranks(1)
def test_an_op_that_does_not_exist_is_refused(hvd, op):
    with pytest.raises(ValueError, match=r"op=Average, Sum, Min, Max, Product, Adasum: .* Received: op="):
        hvd.allreduce(tf.ones([2]), op=op)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", ["Min", "Max"])
@on_ranks(1, 2, 3)
def test_a_nan_on_one_rank_is_one_on_all(hvd, op, mode):
    parts = np.array([[np.nan, 1.0, 1.0, -np.inf], [1.0, np.nan, 2.0, np.nan], [2.0, 3.0, np.nan, np.inf]])
    parts = parts[: hvd.size()].astype("float32")
    result = call(mode, lambda x: hvd.allreduce(x, op=getattr(hvd, op)), parts[hvd.rank()])
    np.testing.assert_array_equal(result, getattr(np, op.lower())(parts, axis=0))  # NumPy's propagate NaN
    words = tf.constant(result.numpy().view("int32"))
    for other in np.split(hvd.allgather(words).numpy(), hvd.size()):
        np.testing.assert_array_equal(other, words)


@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
@on_ranks(1, 2, 3)
def test_scale_factors_of_every_op(hvd, op):
    parts = np.stack(arrays(hvd.size(), "float64"))
    result = hvd.allreduce(parts[hvd.rank()], op=getattr(hvd, op), prescale_factor=-0.5, postscale_factor=3.0)
    reduce = {"Min": np.min, "Max": np.max, "Product": np.prod}[op]
    check(result, 3 * reduce(-0.5 * parts, axis=0))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32"])
@on_ranks(2, 3)
def test_the_average_of_integers_whose_sum_does_not_fit(hvd, dtype):
    largest = np.iinfo(dtype).max
    check(hvd.allreduce(np.full(3, largest, dtype)), np.full(3, largest, dtype))


@on_ranks(1, 2, 3)
def test_none_in_a_group_stays_in_its_place(hvd):
    x, y = array(hvd.rank(), "float32"), array(hvd.rank(), "int64", (0,))
    results = hvd.grouped_allreduce([None, x, None, y], op=hvd.Sum)
    assert results[0] is None and results[2] is None and len(results) == 4
    check(results[1], total(arrays(hvd.size(), "float32")))
    check(results[3], np.zeros(0, "int64"))
    assert hvd.grouped_allreduce([None, None]) == [None, None]


@on_ranks(2)
def test_factors_have_the_digits_of_float64(hvd):
    scaled = hvd.allreduce(
        tf.constant([3.0], tf.float64), op=hvd.Sum, prescale_factor=0.1, postscale_factor=1 / 3
    )
    np.testing.assert_allclose(scaled.numpy(), [0.2], rtol=1e-15)
