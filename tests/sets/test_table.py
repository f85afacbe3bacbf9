"""Adding and removing process sets: numbers, attributes, errors."""

import copy
import os
import pickle
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.support import in_threads
from tests.sets.support import added, subsets, sum_of_ones


@on_ranks(1, 2, 3, full=(4,))
def test_the_global_set(hvd):
    everybody = hvd.global_process_set
    assert everybody.process_set_id == 0 and everybody.ranks == list(range(hvd.size()))
    assert everybody.size() == hvd.size() and everybody.rank() == hvd.rank() and everybody.included() is True
    assert hvd.remove_process_set(everybody) is False
    sum_of_ones(hvd, everybody)
    assert int(hvd.process_set_included_op()) == 1


@pytest.mark.parametrize(
    ("hosts", "ranks", "by_hosts", "expected"),
    [
        ((0, 0, 2, 2), range(4), True, [[0, 1], [2, 3]]),
        ((0, 1, 1, 0), range(4), True, [[0, 3], [1, 2]]),
        ((0, 0, 0, 3, 3, 3), [1, 2, 4, 5], True, [[0, 1], [2, 3]]),
        ((0, 0, 2, 2), range(4), False, None),
        ((0, 0, 0, 3), range(4), True, None),
        ((0, 0, 2, 2), [0, 2], True, None),
        ((0, 0, 0, 0), range(4), True, None),
        ((0,), [0], True, None),
    ],
)
def test_hosts_with_equally_many_members(monkeypatch, hosts, ranks, by_hosts, expected):
    from tfddl.runtime import job, process_sets

    monkeypatch.setattr(job.process, "job", SimpleNamespace(hosts=hosts, by_hosts=by_hosts))
    assert process_sets.even_hosts(process_sets.ProcessSet(ranks)) == expected


@on_ranks(2, 3, full=(4,))
def test_attributes(hvd):
    new = hvd.ProcessSet([hvd.size() - 1, 0][: hvd.size() - 1])
    assert (new.process_set_id, new.size(), new.rank(), new.included(), new.mpi_comm) == (None,) * 5
    assert str(new) == f"ProcessSet(process_set_id=None, ranks={sorted(new.ranks)}, mpi_comm=None)"
    assert hvd.add_process_set(new) is new
    number = new.process_set_id
    assert number > 0 and new.size() == len(new.ranks)
    assert str(new) == f"ProcessSet(process_set_id={number}, ranks={new.ranks}, mpi_comm=None)"
    assert new.included() == (hvd.rank() in new.ranks) == bool(hvd.process_set_included_op(new))
    assert int(hvd.size_op(new)) == int(hvd.size_op(number)) == len(new.ranks)
    if new.included():
        assert new.rank() == new.ranks.index(hvd.rank()) == int(hvd.rank_op(process_set=new))
        sum_of_ones(hvd, new)
    else:
        with pytest.raises(ValueError, match=f"rank {hvd.rank()} is not a member"):
            new.rank()
    assert hvd.remove_process_set(new) is True
    assert (new.process_set_id, new.size(), new.included()) == (None, None, None)
    assert hvd.remove_process_set(new) is False
    assert int(hvd.process_set_included_op(number)) == -3


@on_ranks(2, 3)
def test_questions_inside_a_function(hvd):
    with added(hvd, [0]) as (only,):

        @tf.function
        def ask():
            if only.included():
                return [only.size(), only.rank(), hvd.global_process_set.rank()]
            return [only.size(), -1, hvd.global_process_set.rank()]

        answers = [int(answer) for answer in ask()]
        assert answers == [1, 0 if hvd.rank() == 0 else -1, hvd.rank()]


@on_ranks(2, 3)
def test_numbers_are_not_used_again(hvd):
    first, *others = [hvd.add_process_set(ranks) for ranks in subsets(hvd.size())]
    given = [one.process_set_id for one in (first, *others)]
    assert given == list(range(given[0], given[0] + len(given)))
    assert hvd.remove_process_set(first)
    again = hvd.add_process_set(first.ranks)
    assert again.process_set_id == given[-1] + 1 and again is not first
    for process_set in (again, *others):
        if process_set.included():
            sum_of_ones(hvd, process_set)
        assert hvd.remove_process_set(process_set)


@on_ranks(2, 3)
def test_function_of_a_set_that_is_gone(hvd):
    """A function of a removed set does not run on the next set, though this process is a member."""
    one, next_one = ([0], [1]) if hvd.size() == 2 else ([0, 1], [0, 2])
    for jit_compile in (False, True):
        gone = hvd.add_process_set(one)
        number = gone.process_set_id
        traced = tf.function(
            partial(hvd.allreduce, tf.ones(2), op=hvd.Sum, process_set=gone), jit_compile=jit_compile
        )
        if gone.included():
            assert traced().numpy().tolist() == [len(one)] * 2
        assert hvd.remove_process_set(gone)
        with added(hvd, next_one) as (other,):
            if hvd.rank() == 0:
                with pytest.raises(tf.errors.OpError, match=f"there is no process set {number} any more"):
                    traced()
            if other.included():
                sum_of_ones(hvd, other)


@on_ranks(2, 3)
def test_without_those_that_have_joined(hvd):
    """Adding and removing sets raise while a rank has joined: first rank 0, then the last rank."""
    with added(hvd, [0]) as (only,):
        for absent in (0, hvd.size() - 1):
            if hvd.rank() != absent:
                text = rf"needs all ranks, and rank {absent} has joined \(hvd.join\(\)\)"
                with pytest.raises(ValueError, match="add_process_set " + text):
                    hvd.add_process_set([1])
                with pytest.raises(ValueError, match="remove_process_set " + text):
                    hvd.remove_process_set(only)
            hvd.join()
            if only.included():
                sum_of_ones(hvd, only)


@on_ranks(2, 3)
def test_copies(hvd):
    with added(hvd, [0]) as (only,):
        assert copy.copy(only) is copy.deepcopy(only) is pickle.loads(pickle.dumps(only)) is only
        everybody = hvd.global_process_set
        assert pickle.loads(pickle.dumps(everybody)) is copy.deepcopy(everybody) is everybody
        text = pickle.dumps(only)
    assert pickle.loads(text).ranks == [0] and pickle.loads(text).process_set_id is None


@on_ranks(1, 2, 3)
def test_ranks_that_make_no_set(hvd):
    for ranks in ([], [hvd.size()], [-1], [0, 0], ["a"], 3, [0.5], list(range(hvd.size()))):
        with pytest.raises(ValueError, match="Received: "):
            hvd.add_process_set(ranks)
    with pytest.raises(ValueError, match=r"add_process_set: ProcessSet takes .* Received: \[0, 0\]"):
        hvd.add_process_set([0, 0])
    for ranks in ([-1], [0, 0], ["a"], 3, [0.5], None):
        with pytest.raises(ValueError, match=r"ProcessSet takes the ranks .* Received: "):
            hvd.ProcessSet(ranks)
    with pytest.raises(TypeError, match="ProcessSet"):
        hvd.remove_process_set([0])
    sum_of_ones(hvd, hvd.global_process_set)


@on_ranks(2, 3)
def test_a_set_that_is_there_already(hvd):
    with added(hvd, [0]) as (only,):
        for again in ([0], hvd.ProcessSet([0]), only):
            with pytest.raises(ValueError, match=r"already"):
                hvd.add_process_set(again)


@on_ranks(2, 3)
def test_ranks_that_differ(hvd):
    """All ranks get the same error with the arguments of each rank, and the next call works."""
    with pytest.raises(ValueError, match=r"rank 0: .*0.*; rank.* 1.*: .*1.*") as caught:
        hvd.add_process_set([0 if hvd.rank() == 0 else 1])
    assert len(set(hvd.allgather_object(str(caught.value)))) == 1
    with pytest.raises(ValueError, match=r"rank 0: ProcessSet takes .*'a'|rank 0: .*'a'"):
        hvd.add_process_set(["a"] if hvd.rank() == 0 else [1])
    with added(hvd, [0], [1]) as (first, second):
        mine = first if hvd.rank() == 0 else second
        with pytest.raises(
            ValueError, match=r"rank 0: remove_process_set\(\[0\]\); rank.* 1.*: remove_process_set\(\[1\]\)"
        ):
            hvd.remove_process_set(mine)
        with pytest.raises(
            ValueError, match=r"rank 0: remove_process_set\(\[0\]\); rank.* 1.*: add_process_set\(\[0, 1\]\)"
        ):
            hvd.remove_process_set(first) if hvd.rank() == 0 else hvd.add_process_set([0, 1])
        if mine.included():
            sum_of_ones(hvd, mine)


@on_ranks(2, 3, full=(4,))
def test_calls_of_ranks_outside(hvd):
    with added(hvd, [0]) as (only,):
        named = rf"member of process set {only.process_set_id} \[0\]"
        for call in (
            lambda: hvd.allreduce(tf.ones([3]), process_set=only),
            lambda: hvd.broadcast(tf.ones([3]), 0, process_set=only),
            lambda: hvd.allgather(tf.ones([3]), process_set=only),
            lambda: hvd.alltoall(tf.ones([3]), process_set=only),
            lambda: hvd.reducescatter(tf.ones([3]), process_set=only),
            lambda: hvd.barrier(process_set=only),
            lambda: hvd.broadcast_object(1, process_set=only),
            lambda: hvd.rank_op(process_set=only),
        ):
            if hvd.rank() == 0:
                call()
            else:
                text = f"rank {hvd.rank()} is not a {named}"
                with pytest.raises(tf.errors.InvalidArgumentError, match=text):
                    call()
        if hvd.rank() == 0:
            with pytest.raises(tf.errors.InvalidArgumentError, match=rf"must be a {named}: .* Received: 1"):
                hvd.broadcast(tf.ones([3]), 1, process_set=only)


@on_ranks(2, 3)
def test_a_set_that_is_gone(hvd):
    with added(hvd, [0]) as (gone,):
        pass
    for process_set in (gone, hvd.ProcessSet([0])):
        with pytest.raises(ValueError, match=r"part of the job.* Received: ProcessSet\(process_set_id=None"):
            hvd.allreduce(tf.ones([3]), process_set=process_set)
    with pytest.raises(TypeError, match="takes a ProcessSet"):
        hvd.allreduce(tf.ones([3]), process_set=0)


@on_ranks(3)
def test_a_set_in_use_stays(hvd):
    with added(hvd, [0, 1]) as (pair,):
        late = partial(sum_of_ones, hvd, pair, "late")
        with in_threads(*([late] if hvd.rank() == 0 else [])):
            while hvd.rank() == 0 and not _in_flight(pair.process_set_id):
                pass
            hvd.barrier()
            with pytest.raises(ValueError, match=r"rank 0: .*'late' still in flight"):
                hvd.remove_process_set(pair)
            if hvd.rank() == 1:
                late()
        hvd.barrier()


def _in_flight(number):
    from tfddl.runtime import library

    return library.native().tfddl_set_in_flight(number)


@on_ranks(1, 2, 3)
def test_shutdown_ends_all_sets(hvd):
    for _ in range(3):
        sets = [hvd.add_process_set(ranks) for ranks in subsets(hvd.size())]
        for process_set in sets:
            if process_set.included():
                sum_of_ones(hvd, process_set)
        hvd.shutdown()
        assert all(one.process_set_id is None and one.included() is None for one in sets)
        assert hvd.global_process_set.ranks is None and hvd.global_process_set.size() is None
        assert int(hvd.process_set_included_op()) == -1
        with pytest.raises(ValueError, match="not been initialized"):
            hvd.add_process_set([0])
        hvd.init()
    sum_of_ones(hvd, hvd.global_process_set)


def _resources():
    """Threads, descriptors and shared memory of this process."""
    maps = Path("/proc/self/maps").read_text()
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "segments": maps.count("tfddl-"),
        "files": sum(re.match("tfddl-(?!test-)", name) is not None for name in os.listdir("/dev/shm")),
    }


@on_ranks(2, 3, limit=180)
def test_nothing_is_left_of_removed_sets(hvd):
    def rounds(count):
        for _ in range(count):
            with added(hvd, *subsets(hvd.size())) as sets:
                for process_set in sets:
                    if process_set.included():
                        sum_of_ones(hvd, process_set)
        hvd.barrier()

    rounds(3)
    before = _resources()
    rounds(50)
    assert _resources() == before
