"""Timelines contain every collective once, with its phases, from all callers of the engine."""

import functools
import json
import os
import time
from unittest import mock

import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.harness.flight import operations
from tests.ops.support import in_threads
from tests.sets.support import added, sum_of_ones
from tests.timeline.support import by_name, mine, recorded
from tfddl.timeline import summary
from tfddl.timeline.align import read_job


@on_ranks(1, 2, 3)
def test_every_kind(hvd, tmp_path):
    rank, size, path = hvd.rank(), hvd.size(), tmp_path / "timeline.json"
    with recorded(hvd, path, mark_cycles=True):
        hvd.allreduce(tf.ones([1000]), op=hvd.Sum, name="sum")
        hvd.grouped_allreduce([tf.ones([10], tf.float64), tf.ones([5], tf.float64)], op=hvd.Max, name="group")
        hvd.broadcast(tf.ones([3], tf.int32), 0, name="broadcast")
        hvd.allgather(tf.ones([rank + 1, 2], tf.float16), name="gather")
        hvd.reducescatter(tf.ones([size, 2]), op=hvd.Sum, name="scatter")
        hvd.alltoall(tf.ones([size], tf.int8), name="alltoall")
        hvd.barrier()
        hvd.join()
    trace = mine(hvd, path)
    found = {name: requests[0].arguments for name, requests in by_name(trace).items()}
    assert len(found) == len(trace.requests) == 8
    told = [
        (about["kind"], about.get("op"), about.get("dtype"), about.get("bytes")) for about in found.values()
    ]
    assert told == [
        ("allreduce", "Sum", "float32", 4000),
        ("allreduce", "Max", "float64", 120),
        ("broadcast", None, "int32", 12),
        ("allgather", None, "float16", 4 * (rank + 1)),
        ("reducescatter", "Sum", "float32", 8 * size),
        ("alltoall", None, "int8", size),
        ("barrier", None, None, None),
        ("join", None, None, None),
    ]
    assert found["group"]["tensors"] == 2 and found["sum"]["process_set"] == "all ranks"
    votes = [event for event in trace.events if event.get("name") == "vote"]
    assert len(votes) >= 7 and all(event["ph"] == "i" for event in votes)
    titles = [event["args"]["name"] for event in trace.events if event.get("name") == "process_name"]
    assert titles == [f"rank {rank}, {trace.host}"]


@pytest.mark.parametrize("jit", [False, True])
@on_ranks(1, 2, 3)
def test_buckets_in_a_function(hvd, tmp_path, jit):
    """Three steps of a tape with four variables, one in each bucket."""
    variables = [tf.Variable(tf.ones([400])) for _ in range(4)]

    @tf.function(jit_compile=jit)
    def step(x):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.add_n([tf.reduce_sum(variable * x) for variable in variables])
        return tape.gradient(loss, variables)

    path = tmp_path / "timeline.json"
    with mock.patch.dict(os.environ, TFDDL_BUCKET_MB="0.001"):
        step(tf.ones([400]))
    with recorded(hvd, path):
        for _ in range(3):
            step(tf.ones([400]))
    found = by_name(mine(hvd, path))
    assert len(found) == 4 and all(len(requests) == 3 for requests in found.values())
    steps = list(
        summary.steps([request for requests in zip(*found.values(), strict=True) for request in requests])
    )
    assert [len(requests) for requests in steps] == [4, 4, 4]
    for requests in steps:
        assert sorted(request.arguments["bucket"] for request in requests) == [1, 2, 3, 4]
        assert {request.arguments["buckets"] for request in requests} == {4}
        assert {request.bytes for request in requests} == {1600}
        assert len({request.arguments["step"] for request in requests}) == 1
    assert len({requests[0].arguments["step"] for requests in steps}) == 3
    if hvd.rank() == 0:
        lines = summary.exposed(read_job(path)[0], top=3)
        assert [line["steps"] for line in lines] == [3] * hvd.size()
        assert all(line["exposed, median ms"] > 0 and "(4 collectives)" in line["step"] for line in lines)


@on_ranks(2, 3)
def test_process_sets(hvd, tmp_path):
    """One name in two sets at once is two collectives."""
    path = tmp_path / "timeline.json"
    with added(hvd, [0], list(range(1, hvd.size()))) as sets:
        own = next(one for one in sets if one.included())
        with recorded(hvd, path):
            sum_of_ones(hvd, own, "same")
            sum_of_ones(hvd, hvd.global_process_set, "same")
        words = f"process set {own.process_set_id} {own.ranks}"
        assert [request.process_set for request in mine(hvd, path).requests] == [words, "all ranks"]
        if hvd.rank() == 0:
            traces, _ = read_job(path)
            # A set of one rank has no late rank.
            of = [1, 1] if hvd.size() == 2 else [1, 2, 2]
            assert [line["of"] for line in summary.lateness(traces)] == of
            assert {line["name"] for line in summary.names(traces, top=9)} >= {"same", f"same of {words}"}
    hvd.barrier()


@on_ranks(2, 3)
def test_the_late_rank_is_named(hvd, tmp_path):
    from mpi4py import MPI

    path, late = tmp_path / "timeline.json", hvd.size() - 1
    with recorded(hvd, path):
        for name in [f"sum.{number}" for number in range(5)]:
            if hvd.rank() == late:
                MPI.COMM_WORLD.Barrier()
                time.sleep(0.2)
                hvd.allreduce(tf.ones([10]), name=name)
                continue
            with in_threads(functools.partial(hvd.allreduce, tf.ones([10]), name=name)):
                while name not in [each.name for each in operations()]:
                    time.sleep(0.01)
                MPI.COMM_WORLD.Barrier()
    if hvd.rank() == 0:
        traces, notes = read_job(path)
        assert notes == []
        for line in summary.lateness(traces):
            assert line["last"] == (5 if line["rank"] == late else 0) and line["of"] == 5
            if line["rank"] == late:
                assert line["later by, median ms"] >= 200, line
        waiting = [line["s waiting"] for line in summary.ranks(traces)]
        assert min(waiting[:late]) > max(1, waiting[late]), waiting


@on_ranks(1, 2, 3)
def test_start_stop_start(hvd, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second"
    hvd.stop_timeline()
    with recorded(hvd, first):
        hvd.allreduce(tf.ones([3]), name="in.first")
        with pytest.raises(ValueError, match=r"being written already, to '.*first.*second"):
            hvd.start_timeline(second)
    hvd.allreduce(tf.ones([3]), name="in.none")
    with recorded(hvd, second):
        hvd.allreduce(tf.ones([3]), name="in.second")
    assert list(by_name(mine(hvd, first))) == ["in.first"]
    assert list(by_name(mine(hvd, second))) == ["in.second"]
    assert (tmp_path / f"second.rank{hvd.size() - 1}").exists() or hvd.size() == 1


@on_ranks(2)
def test_one_rank_alone(hvd, tmp_path):
    """A rank may record alone."""
    path = tmp_path / "timeline.json"
    if hvd.rank() == 1:
        hvd.start_timeline(path)
    hvd.allreduce(tf.ones([3]), name="sum")
    if hvd.rank() == 1:
        hvd.stop_timeline()
        assert list(by_name(mine(hvd, path))) == ["sum"]
    hvd.barrier()
    assert not path.exists()


@on_ranks(2, 3)
def test_errors_are_told(hvd, tmp_path):
    path = tmp_path / "timeline.json"
    with recorded(hvd, path):
        with pytest.raises(tf.errors.FailedPreconditionError):
            hvd.allreduce(tf.ones([hvd.rank() + 1]), name="differs")
        hvd.allreduce(tf.ones([3]), name="after")
    differs, after = mine(hvd, path).requests
    assert "'differs' with different arguments: rank 0: float32 [1]" in differs.error
    assert not after.error
    if hvd.rank() == 0:
        assert [line["errors"] for line in summary.ranks(read_job(path)[0])] == [1] * hvd.size()
    hvd.barrier()


@on_ranks(1, 2)
def test_a_path_that_cannot_be_written(hvd, tmp_path):
    nowhere = tmp_path / "nowhere" / "timeline.json"
    with pytest.raises(FileNotFoundError, match="nowhere/timeline"):
        hvd.start_timeline(nowhere)
    with recorded(hvd, tmp_path / "timeline.json"):
        hvd.allreduce(tf.ones([3]))
    hvd.shutdown()
    with (
        mock.patch.dict(os.environ, TFDDL_TIMELINE=str(nowhere)),
        pytest.raises(
            ValueError,
            match=r"TFDDL_TIMELINE \(tfddlrun --timeline-filename\) must be a file that can be .*nowhere",
        ),
    ):
        hvd.init()
    for call in (lambda: hvd.start_timeline(nowhere), hvd.stop_timeline):
        with pytest.raises(ValueError, match=r"not been initialized; use hvd\.init\(\)"):
            call()
    hvd.init()


@on_ranks(1, 2)
def test_a_full_disk(hvd):
    """A device is the file of every rank."""
    hvd.start_timeline("/dev/full")
    assert hvd.allreduce(tf.ones([3]), op=hvd.Sum)[0] == hvd.size()
    with pytest.raises(OSError, match=r"'/dev/full' is not whole: No space left on device"):
        hvd.stop_timeline()


@on_ranks(1)
def test_a_path_that_is_none(hvd, tmp_path):
    for wrong, error in ((3, TypeError), (None, TypeError), ("", ValueError), (b"", ValueError)):
        with pytest.raises(
            error, match=rf"file_path of start_timeline must .*: pass a path.* Received: {wrong!r}"
        ):
            hvd.start_timeline(wrong)
    path = tmp_path / "timeline.json"
    hvd.start_timeline(os.fsencode(path))
    hvd.stop_timeline()
    assert mine(hvd, path).requests == []


@on_ranks(1, 2)
def test_by_the_environment(hvd, tmp_path):
    """The variable records from init() to shutdown(), and the file is complete."""
    path, rank, size = tmp_path / "timeline.json", hvd.rank(), hvd.size()
    hvd.shutdown()
    with mock.patch.dict(os.environ, TFDDL_TIMELINE=str(path), TFDDL_TIMELINE_MARK_CYCLES="1"):
        hvd.init(process_sets=[hvd.ProcessSet([0])] if size > 1 else [])
    hvd.allreduce(tf.ones([3]), name="sum")
    hvd.shutdown()
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, size)
    trace = mine(hvd, path)
    assert "sum" in by_name(trace)
    assert any(event.get("name") == "vote" for event in trace.events)
    assert "dur" in json.dumps(trace.events)  # callbacks
