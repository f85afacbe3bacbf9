"""Compression: the dtype on the way, the result, and compressors of the user."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tfddl.ops.compression import Compression, Compressor, check_compression


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("name", ["none", "fp16", "bf16"])
def test_round_trip(name, dtype):
    compression = getattr(Compression, name)
    original = tf.cast(tf.constant([1.5, -2.0, 0.25]), dtype)
    small, context = compression.compress(original)
    shrinks = name != "none" and dtype in ("float32", "float64")
    expected = {"fp16": "float16", "bf16": "bfloat16"}[name] if shrinks else dtype
    assert small.dtype.name == expected
    back = compression.decompress(small, context)
    assert back.dtype == original.dtype
    np.testing.assert_array_equal(tf.cast(back, "float64"), tf.cast(original, "float64"))


def test_a_compressor_has_to_define_both():
    with pytest.raises(NotImplementedError, match="compress"):
        Compressor.compress(tf.constant(1.0))
    with pytest.raises(NotImplementedError, match="decompress"):
        Compressor.decompress(tf.constant(1.0), None)


class Halves(Compressor):
    """Sends half the value, which shows that both methods are called."""

    @staticmethod
    def compress(tensor):
        return tensor / 2, 2.0

    @staticmethod
    def decompress(tensor, context):
        return tensor * context + 1


@on_ranks(1, 2)
def test_a_compressor_of_the_users_own(hvd):
    with hvd.DistributedGradientTape(tf.GradientTape(), compression=Halves) as tape:
        x = tf.constant([3.0, 4.0])
        tape.watch(x)
        y = tf.reduce_sum(x * float(hvd.rank()))
    np.testing.assert_allclose(tape.gradient(y, x), np.full(2, (hvd.size() - 1) / 2 + 1))


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@on_ranks(2)
def test_half_the_bytes(hvd, name):
    from tfddl.runtime import stats

    def reduced(compression):
        before = stats()["bytes_reduced"]
        with hvd.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
            x = tf.ones([1000])
            tape.watch(x)
            y = tf.reduce_sum(x * x) * (hvd.rank() + 1)
        np.testing.assert_allclose(tape.gradient(y, x), np.full(1000, 3.0))
        return stats()["bytes_reduced"] - before

    assert reduced(getattr(hvd.Compression, name)) * 2 == reduced(hvd.Compression.none)


def test_what_is_no_compressor_is_refused():
    with pytest.raises(TypeError, match="Received: compression='fp16'"):
        check_compression("fp16")


@on_ranks(1)
def test_an_operation_in_the_place_of_average(hvd):
    """Horovod takes hvd.Sum as the second argument for average=True."""
    with pytest.raises(TypeError, match=r"op=hvd\.Sum\. Received: average=1"):
        hvd.allreduce(tf.ones(3), hvd.Sum)
