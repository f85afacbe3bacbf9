"""broadcast_object and allgather_object."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from mpi4py import MPI

from tests.harness import on_ranks
from tests.ops.support import at_once

OBJECTS = (
    None,
    b"",
    "",
    0,
    {"epoch": 3, "rate": 1e-3, "list": [1, (2, 3)]},
    np.arange(6).reshape(2, 3),
    "ä" * 1000,
)


class Refuses:
    """An object that cloudpickle refuses."""

    def __reduce__(self):
        raise RuntimeError("not me")


class OnlyThere:
    """An object that can be unpickled on one rank only."""

    def __init__(self, rank):
        self.rank = rank

    def __setstate__(self, state):
        self.rank = state["rank"]
        if MPI.COMM_WORLD.rank != self.rank:
            raise RuntimeError("not here")


@on_ranks(1, 2, 3)
def test_broadcast(hvd):
    for root in range(hvd.size()):
        for obj in OBJECTS:
            mine = obj if hvd.rank() == root else object  # of another type
            np.testing.assert_equal(hvd.broadcast_object(mine, root_rank=root), obj)
            np.testing.assert_equal(hvd.broadcast_object_fn(root)(mine), obj)


@on_ranks(1, 2, 3)
def test_allgather(hvd):
    for obj in OBJECTS:
        np.testing.assert_equal(
            hvd.allgather_object((hvd.rank(), obj)), [(rank, obj) for rank in range(hvd.size())]
        )
    sizes = [len(part) for part in hvd.allgather_object(b"x" * (100_000 * hvd.rank()))]
    assert sizes == [100_000 * rank for rank in range(hvd.size())]


@on_ranks(2, 3)
def test_more_than_64_mebibytes(hvd):
    size = (64 << 20) + 12345
    data = np.random.default_rng(1).bytes(size)
    assert hvd.broadcast_object(data if hvd.rank() == 1 else None, root_rank=1) == data
    gathered = hvd.allgather_object(data if hvd.rank() == 1 else b"small")
    assert gathered[0] == b"small" and gathered[1] == data


@on_ranks(1, 2, 3)
def test_what_cannot_be_pickled_is_an_error_on_all_ranks(hvd):
    last = hvd.size() - 1
    obj = Refuses() if hvd.rank() == last else 5
    reason = rf"rank {last}: RuntimeError: not me\. Received: an object of <class .*Refuses'>"
    with pytest.raises(TypeError, match=f"broadcast_object sends.*{reason}"):
        hvd.broadcast_object(obj, root_rank=last)
    with pytest.raises(TypeError, match=f"allgather_object sends.*{reason}"):
        hvd.allgather_object(obj)
    assert hvd.broadcast_object(hvd.rank()) == 0  # the job goes on


@on_ranks(2)
def test_what_cannot_be_unpickled_here(hvd):
    obj = OnlyThere(1)
    if hvd.rank() == 0:
        with pytest.raises(TypeError, match=r"rank 0 cannot unpickle the object of rank 1: .*not here"):
            hvd.broadcast_object(obj, root_rank=1)
    else:
        assert hvd.broadcast_object(obj, root_rank=1) is obj


@on_ranks(2)
def test_names_keep_concurrent_calls_apart(hvd):
    results = {}

    def work(index):
        results[index] = hvd.allgather_object((index, hvd.rank()), name=f"objects.{index}")

    at_once(*(functools.partial(work, index) for index in range(4)[:: 1 if hvd.rank() == 0 else -1]))
    assert results == {index: [(index, 0), (index, 1)] for index in range(4)}


@on_ranks(1, 2, 3)
def test_in_a_session(hvd):
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        send = hvd.broadcast_object_fn(0, session=session)
        for turn in range(3):
            assert send([turn, "root"] if hvd.rank() == 0 else None) == [turn, "root"]
            assert hvd.allgather_object(hvd.rank() + turn) == [rank + turn for rank in range(hvd.size())]
            if turn == 0:
                graph.finalize()  # the second time nothing is added


@on_ranks(1)
def test_inside_a_function_there_is_no_object(hvd):
    @tf.function
    def step():
        return hvd.broadcast_object(1)

    with pytest.raises(
        ValueError, match=r"cannot become part of .* Received: a call in the tf.function 'step'"
    ):
        step()
    with (
        tf.Graph().as_default(),
        pytest.raises(ValueError, match=r"Received: a call in a graph, without a session"),
    ):
        hvd.broadcast_object(1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"root_rank.*Received: 7"):
        hvd.broadcast_object(1, root_rank=7)
