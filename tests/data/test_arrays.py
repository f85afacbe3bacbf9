"""Arrays in equal parts, and steps per epoch."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tfddl import data
from tfddl.keras.consistency import rows_check


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("count", range(4, 14))
def test_rows_are_dealt_in_turn(count, size):
    x, y = np.arange(count * 2).reshape(count, 2), np.arange(count)
    for rank in range(size):
        mine, labels = data.shard_arrays(x, y, rank=rank, size=size)
        assert labels.tolist() == list(range(rank, count // size * size, size))
        np.testing.assert_array_equal(mine, x[labels])
        assert mine.base is not None, "A view, no copy."


@pytest.mark.parametrize("make", [list, tf.constant, np.array])
def test_one_array_comes_back_alone(make):
    part = data.shard_arrays(make([5, 6, 7]), rank=1, size=3)
    assert list(np.asarray(part)) == [6]


@pytest.mark.parametrize("size", [2, 3])
def test_dicts_keep_their_structure(size):
    x, names = np.arange(20).reshape(10, 2), [f"row{i}" for i in range(10)]
    for rank in range(size):
        rows = slice(rank, 10 // size * size, size)
        alone = data.shard({"x": x, "more": {"names": names}}, rank=rank, size=size)
        both = data.shard({"x": x, "more": {"names": names}}, np.arange(10), rank=rank, size=size)
        assert isinstance(both, tuple) and both[1].tolist() == list(range(10))[rows]
        for found in (alone, both[0]):
            assert list(found) == ["x", "more"] and found["more"] == {"names": names[rows]}
            np.testing.assert_array_equal(found["x"], x[rows])
    with pytest.raises(ValueError, match="Received: 10, 9 rows"):
        data.shard({"x": x, "y": x[:9]}, rank=0, size=size)
    with pytest.raises(ValueError, match="Received: no array"):
        data.shard({}, rank=0, size=size)


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_array", "coo_matrix", "dok_matrix", "bsr_array"])
def test_a_sparse_matrix_of_scipy(kind):
    sparse = pytest.importorskip("scipy.sparse")
    dense, labels = np.diag(np.arange(7.0)), np.arange(7)
    part, mine = data.shard(getattr(sparse, kind)(dense), labels, rank=1, size=3)
    assert part.format == "csr" and mine.tolist() == [1, 4]
    np.testing.assert_array_equal(part.toarray(), dense[[1, 4]])
    with pytest.raises(ValueError, match="Received: 7, 6 rows"):
        data.shard(getattr(sparse, kind)(dense), labels[:6], rank=1, size=3)


@pytest.mark.parametrize(
    ("lengths", "text"),
    [
        ((3, 4), "Received: 3, 4 rows"),
        ((1, 1), "use more data or fewer ranks. Received: rows=1, size=2"),
        ((), "Received: no array"),
    ],
)
def test_errors_quote_what_they_received(lengths, text):
    with pytest.raises(ValueError, match=text):
        data.shard_arrays(*(np.zeros(length) for length in lengths), rank=0, size=2)


@pytest.mark.parametrize(
    ("n", "batch", "size", "steps"), [(60_000, 32, 1, 1875), (60_000, 32, 4, 468), (64, 32, 2, 1)]
)
def test_steps_per_epoch(n, batch, size, steps):
    assert data.steps_per_epoch(n, batch, size) == steps
    assert isinstance(data.steps_per_epoch(n, batch, size), int)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((63, 32, 2), "batch of at most 31 samples, or fewer ranks. Received: n=63, batch=32, size=2"),
        ((0, 32, 2), "positive numbers: .* Received: n=0"),
        ((10, 0, 2), "batch=0"),
    ],
)
def test_no_step_at_all_is_an_error(arguments, text):
    with pytest.raises(ValueError, match=text):
        data.steps_per_epoch(*arguments)


def test_a_change_of_any_row_is_seen(monkeypatch):
    from tfddl.data import arrays

    monkeypatch.setenv("TFDDL_COMMITS", "/not/there")
    monkeypatch.setattr(arrays, "_BLOCK_BYTES", 160)
    whole = np.zeros((100, 2))
    part = data.shard_arrays(whole, rank=1, size=2)
    for row in range(50):
        assert arrays.whole_of(part, (1, 2)) is whole
        part[row, 1] = 1
        assert arrays.whole_of(part, (1, 2)) is None
        part[row, 1] = 0
    whole.flags.writeable = False
    monkeypatch.setattr(arrays.zlib, "crc32", None)  # no row is read: the file may be larger than the memory
    fixed = data.shard_arrays(whole, rank=1, size=2)
    assert arrays.whole_of(fixed, (1, 2)) is whole
    monkeypatch.undo()
    monkeypatch.setenv("TFDDL_COMMITS", "/not/there")
    empty = data.shard_arrays(np.zeros((4, 0)), rank=1, size=2)
    assert arrays.whole_of(empty, (1, 2)) is not None


@on_ranks(1, 2, 3)
def test_the_job_is_the_default(hvd):
    assert hvd.data.steps_per_epoch(100, 10) == 10 // hvd.size()
    rows = hvd.data.shard_arrays(np.arange(10))
    found = hvd.allgather(rows, name="rows").numpy()
    assert sorted(found.tolist()) == list(range(10 // hvd.size() * hvd.size()))
    inputs, labels = hvd.data.shard(
        {"a": np.arange(10), "b": {"c": np.arange(20).reshape(10, 2)}}, np.arange(10)
    )
    np.testing.assert_array_equal(inputs["a"], labels)
    np.testing.assert_array_equal(inputs["b"]["c"], np.arange(20).reshape(10, 2)[labels])
    assert hvd.allgather_object(labels.tolist()) == [
        list(range(10))[rank : 10 // hvd.size() * hvd.size() : hvd.size()] for rank in range(hvd.size())
    ]


def of_kind(kind, numbers):
    if kind == "sparse":
        return pytest.importorskip("scipy.sparse").csr_matrix(numbers[:, None])
    paths = [f"{number}.jpg" for number in numbers]
    return {
        "numbers": numbers[:, None] + 0.5,
        "integers": numbers,
        "list": paths,
        "bytes": np.array(paths, "S"),
        "objects": np.array([*paths, np.nan], object)[:-1],
        "tensor": tf.constant(numbers, tf.bfloat16),
        "images": np.broadcast_to(numbers[:, None, None], (64, 8, 8)) / 64,
    }[kind]


KINDS = ("numbers", "integers", "list", "bytes", "objects", "tensor", "images", "sparse")


def check(hvd):
    rows_check.check_noted("test.rows", hvd.global_process_set)


@on_ranks(2, full=(1, 3))
def test_other_rows_are_refused_when_training_begins(hvd):
    random = np.random.default_rng(hvd.rank()).permutation(64)
    for kind in KINDS:
        hvd.data.shard(np.zeros((64, 2)), of_kind(kind, np.arange(64)))
        check(hvd)
        hvd.data.shard(np.zeros((64, 2)), of_kind(kind, random))
        if hvd.size() == 1:
            continue
        with pytest.raises(ValueError, match=r"one seed on all ranks.*rank 0: shape \(64,.*rank 1: shape"):
            check(hvd)
        check(hvd)
        hvd.data.shard(of_kind(kind, random), rank=hvd.rank(), size=hvd.size())
        check(hvd)


@on_ranks(2, full=(1, 3))
def test_rows_that_may_differ(hvd):
    x = np.random.default_rng(0).normal(size=(64, 8))
    x[7, 1:3] = np.nan, np.inf
    hvd.data.shard(x * (1 + 1e-4 * hvd.rank()), [f"/{hvd.rank()}/{number}.jpg" for number in range(64)])
    hvd.data.shard(np.array([object() for _ in range(64)]), [[1] * (row % 3) for row in range(64)])
    hvd.data.shard(np.zeros((64, 0)), np.zeros(64, [("a", "f4")]))
    check(hvd)
    for _ in range(hvd.rank()):  # Sharding arrays is no collective.
        hvd.data.shard(x[:32])
    hvd.data.shard(x)
    check(hvd)
    eager = tf.zeros((64, 2))
    tf.function(lambda: hvd.data.shard(eager, np.arange(64))[0])()
    with tf.Graph().as_default():
        hvd.data.shard(np.arange(64))
    check(hvd)


@on_ranks(2)
def test_other_slices_of_a_dataset_are_refused(hvd):
    slices = tf.data.Dataset.from_tensor_slices
    random = np.random.default_rng(hvd.rank()).permutation(64)
    hvd.data.shard(slices((np.arange(64), np.zeros(64))).map(lambda x, y: x))
    hvd.data.shard(slices(tf.ragged.constant([[1], [2, 3]])))
    with pytest.raises(ValueError, match=r"rank 0: shape \(64,\), row \d+ with .*; rank 1: shape \(64,\)"):
        hvd.data.shard(tf.data.Dataset.zip((tf.data.Dataset.range(64), slices(random))).batch(4))
