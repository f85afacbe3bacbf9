"""Every operation with every dtype: it agrees with NumPy if the table has the dtype, and is refused otherwise."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.support import numpy_type
from tests.ops.test_adasum import adasum
from tfddl.ops.constants import NAMES, Adasum
from tfddl.ops.dtypes import DTYPES, REDUCTIONS

SHAPE = (4, 3)
REDUCE = {
    "Adasum": adasum,
    "Average": lambda x: x.sum(axis=0) / len(x),
    "Sum": lambda x: x.sum(axis=0),
    "Min": lambda x: x.min(axis=0),
    "Max": lambda x: x.max(axis=0),
    "Product": lambda x: x.prod(axis=0),
}


def inputs(size, dtype):
    """The inputs of all ranks as a wide NumPy array [size, *SHAPE], whose reductions are exact in `dtype`."""
    generator = np.random.default_rng(3)
    if dtype == "bool":
        return generator.integers(0, 2, (size, *SHAPE)).astype(bool)
    low = 0 if dtype.startswith("u") else -6
    whole = generator.integers(low, 7, (size, *SHAPE)).astype("float64")
    return whole + 1j * generator.integers(-3, 4, whole.shape) if dtype.startswith("complex") else whole


def cast(expected, dtype):
    return (np.trunc(expected) if "int" in dtype else expected).astype(numpy_type(dtype))


def same(result, expected):
    assert result.dtype.name == expected.dtype.name and tuple(result.shape) == expected.shape
    if result.dtype.is_integer or result.dtype == tf.bool:
        np.testing.assert_array_equal(result, expected)
    else:
        tolerance = 1e-2 if result.dtype.size == 2 else 1e-6
        np.testing.assert_allclose(
            result.numpy().astype("complex128"), expected.astype("complex128"), tolerance
        )


@pytest.mark.parametrize("dtype", DTYPES)
@on_ranks(1, 2, 3)
def test_what_the_table_has(hvd, dtype):
    parts = inputs(hvd.size(), dtype)
    x = tf.constant(parts[hvd.rank()].astype(numpy_type(dtype)))
    for op, dtypes in REDUCTIONS.items():
        if dtype in dtypes:
            # Adasum rounds each pair's result to the dtype.
            brought = parts.astype(numpy_type(dtype)) if op == Adasum else parts
            expected = cast(REDUCE[NAMES[op]](brought), dtype)
            same(hvd.allreduce(x, op=op), expected)
            for result in hvd.grouped_allreduce([x, x], op=op):
                same(result, expected)
    same(hvd.allgather(x), cast(parts.reshape(-1, SHAPE[1]), dtype))
    same(hvd.broadcast(x, hvd.size() - 1), cast(parts[-1], dtype))


@on_ranks(1)
def test_what_the_table_lacks(hvd):
    from tfddl.runtime import library

    missing = [
        (op, dtype) for op, dtype in itertools.product(REDUCTIONS, DTYPES) if dtype not in REDUCTIONS[op]
    ]
    assert missing
    for op, dtype in missing:
        x = tf.zeros([2], dtype)
        with pytest.raises(TypeError, match=rf"op={NAMES[op]} supports .*\. Received: {dtype}\. \w"):
            hvd.allreduce(x, op=op)
        with pytest.raises(tf.errors.InvalidArgumentError, match=dtype):  # the kernel has the same table
            library.ops().tfddl_allreduce(x=[x], tensor_name="lacks", reduce_op=op)


@on_ranks(1)
def test_strings_are_refused_with_a_way_out(hvd):
    for call in (hvd.allreduce, hvd.allgather, lambda x: hvd.broadcast(x, 0)):
        with pytest.raises(TypeError, match=r"Received: string\. Use broadcast_object or allgather_object"):
            call(tf.constant(["text"]))


@on_ranks(1)
def test_handles_are_refused_with_a_way_out(hvd):
    for handle, advice in (
        (tf.Variable([1.0]).handle, r"resource\. Pass what the resource holds, .* variable\.value\(\)"),
        (tf.data.Dataset.range(3)._variant_tensor, r"variant\. Pass the tensors inside of it"),
    ):
        with pytest.raises(TypeError, match=rf"Received: {advice}"):
            hvd.broadcast(handle, 0)


@on_ranks(1)
def test_none_is_refused_with_a_way_out(hvd):
    for call in (
        hvd.allreduce,
        hvd.allgather,
        hvd.reducescatter,
        hvd.alltoall,
        lambda x: hvd.broadcast(x, 0),
    ):
        with pytest.raises(TypeError, match=r"\w+ takes a tensor: a gradient is None .*Received: None"):
            call(None)


OTHER_TENSORS = {
    "RaggedTensor": (
        lambda: tf.ragged.constant([[1, 2], [3]]),
        r"pass x\.to_tensor\(\), or call hvd\.all\w+ for x\.flat",
    ),
    "SparseTensor": (lambda: tf.sparse.from_dense([1, 0]), r"pass tf\.sparse\.to_dense\(x\)"),
    "dict of 'a'": (lambda: {"a": tf.ones(2)}, r"pass each value .* tf\.nest\.map_structure\(hvd\.all"),
}


@pytest.mark.parametrize("kind", OTHER_TENSORS)
@on_ranks(1)
def test_other_tensors_are_refused_with_a_way_out(hvd, kind):
    make, advice = OTHER_TENSORS[kind]
    grouped = (lambda x: hvd.grouped_allreduce([x]), lambda x: hvd.grouped_allgather([x]))
    for call in (hvd.allreduce, hvd.allgather, *grouped):
        with pytest.raises(TypeError, match=rf"takes dense tensors: {advice}.*Received: {kind}"):
            call(make())
    for call in (hvd.reducescatter, hvd.alltoall, lambda x: hvd.broadcast(x, 0)):
        with pytest.raises(TypeError, match=rf"takes dense tensors: pass .*Received: {kind}"):
            call(make())


def test_the_documentation_has_the_same_table():
    text = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    rows = {f"`op={NAMES[op]}`": dtypes for op, dtypes in REDUCTIONS.items()}
    rows |= {"`broadcast`": DTYPES, "`allgather`": DTYPES, "`alltoall`": DTYPES}
    header = "| | " + " | ".join(DTYPES) + " |"
    lines = [header, "|---" * (len(DTYPES) + 1) + "|"]
    for name, dtypes in rows.items():
        lines.append(f"| {name} | " + " | ".join("x" if dtype in dtypes else "" for dtype in DTYPES) + " |")
    assert "\n".join(lines) in text, "docs/operations.md should have\n" + "\n".join(lines)
