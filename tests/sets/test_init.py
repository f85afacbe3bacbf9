"""init(comm=...) and init(process_sets=...)."""

import pytest
import tensorflow as tf
from mpi4py import MPI

from tests.harness import on_ranks, run_script
from tests.sets.support import sum_of_ones
from tfddl.runtime.job import process

HEAD = """
import os
import numpy as np
import tensorflow as tf
import tfddl as hvd
from mpi4py import MPI
world = MPI.COMM_WORLD
def total(value, **options):
    return float(hvd.allreduce(tf.constant(float(value)), op=hvd.Sum, **options))
"""


@pytest.fixture
def passes():
    def run(size, script):
        result = run_script(size, HEAD + script)
        assert result.code == 0, result.output
        return result.output

    return run


@pytest.fixture
def fails():
    def run(size, script):
        result = run_script(size, HEAD + script)
        assert result.code != 0, result.output
        return result.output

    return run


@on_ranks(2, 3, full=(4,))
def test_static_sets(hvd):
    hvd.shutdown()
    last, first = hvd.ProcessSet([MPI.COMM_WORLD.size - 1]), hvd.ProcessSet([0])
    hvd.init(process_sets=[last, first])
    assert (last.process_set_id, first.process_set_id) == (1, 2)
    for one in (first, last):
        if one.included():
            assert float(hvd.allreduce(tf.constant(3.0), op=hvd.Sum, process_set=one)) == 3
    hvd.shutdown()
    assert last.process_set_id is None
    hvd.init(process_sets=[first])
    assert first.process_set_id == 1 and last.included() is None
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    assert hvd.remove_process_set(hvd.add_process_set([0]))


@on_ranks(2, 3)
def test_static_sets_that_differ(hvd):
    """All ranks get the same error, and can call init() again."""
    rank = hvd.rank()
    hvd.shutdown()
    one, two = hvd.ProcessSet([0]), hvd.ProcessSet([1])
    for mine, text in (
        ([one] if rank == 0 else [one, two], r"rank 0: init\(\[0\]\); rank.* 1.*: init\(\[0\], \[1\]\)"),
        ([one] if rank == 0 else None, r"rank 0: init\(\[0\]\); rank.* 1.*: init\(\)"),
        ([one, two] if rank == 0 else [two, one], r"rank 0: init\(\[0\], \[1\]\)"),
        ([one, hvd.ProcessSet([0])], "ranks of its own"),
        ([hvd.ProcessSet([7])], "the ranks of the job are"),
        ([[0]], "list of ProcessSet"),
        ("static", "list of ProcessSet"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.init(process_sets=mine)
        assert not hvd.is_initialized() and one.process_set_id is None
    hvd.init(process_sets=[one, two])
    assert one.included() == (rank == 0)
    assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)) == hvd.size()
    hvd.shutdown()
    hvd.init()


@on_ranks(3, full=(4,))
def test_sets_from_communicators(hvd):
    """Split makes several communicators; each becomes a set, and COMM_NULL none."""
    world = MPI.COMM_WORLD
    parity = world.Split(world.rank % 2, key=-world.rank)
    alone = world.Split(0 if world.rank == 0 else MPI.UNDEFINED)
    mine, first = hvd.ProcessSet(parity), hvd.ProcessSet(alone)
    assert mine.ranks is None and mine.mpi_comm is parity
    hvd.shutdown()
    hvd.init(process_sets=[mine, first])
    same = list(range(world.rank % 2, world.size, 2))
    assert mine.ranks == same and mine.process_set_id == 1 + world.rank % 2
    assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, process_set=mine)) == len(same)
    if world.rank == 0:
        assert first.ranks == [0] and first.included()
    if world.rank != 0:
        assert first.process_set_id is None
        with pytest.raises(ValueError, match="part of the job"):
            hvd.allreduce(tf.constant(1.0), process_set=first)
    hvd.shutdown()
    for communicator in (parity, alone):
        if communicator != MPI.COMM_NULL:
            communicator.Free()
    hvd.init()


@on_ranks(3, full=(4,))
def test_sets_from_communicators_leave_together(hvd):
    """In one call of all ranks, for which a rank with COMM_NULL passes its object as well."""
    world = MPI.COMM_WORLD
    for color in (world.rank % 2, 0 if world.rank == 0 else MPI.UNDEFINED):
        communicator = world.Split(color)
        mine = hvd.add_process_set(hvd.ProcessSet(communicator))
        outsider = hvd.add_process_set([0, 1])
        if mine.ranks:
            sum_of_ones(hvd, mine)
        assert hvd.remove_process_set(mine)
        assert not mine.registered() and outsider.registered()
        assert not hvd.remove_process_set(mine)
        again = hvd.add_process_set([0])
        assert hvd.remove_process_set(again) and hvd.remove_process_set(outsider)
        if communicator != MPI.COMM_NULL:
            communicator.Free()


@on_ranks(3, full=(4,))
def test_communicator_of_the_job(hvd):
    """The job is numbered as the communicator; those who are not in it have a job of their own. Many times: MPI gives
    the numbers of freed communicators to others, in which no message of the old ones may turn up."""
    world = MPI.COMM_WORLD
    for _ in range(10):
        hvd.shutdown()
        comm = world.Split(world.rank == 0, key=-world.rank)
        hvd.init(comm=comm)
        assert hvd.global_process_set.mpi_comm is comm
        comm.Free()
        assert hvd.size() == (1 if world.rank == 0 else world.size - 1)
        assert hvd.rank() == (0 if world.rank == 0 else world.size - 1 - world.rank)
        ranks = hvd.allgather_object(world.rank)
        assert ranks == ([0] if world.rank == 0 else list(range(world.size - 1, 0, -1)))
        hvd.shutdown()
        hvd.init()
        assert hvd.global_process_set.mpi_comm is None


@on_ranks(2, 3)
def test_another_number_of_jobs_before(hvd):
    """The watchdogs hear each other, so that the ranks know after their last messages that nothing is under way."""
    world = MPI.COMM_WORLD
    hvd.shutdown()
    if world.rank == 0:
        hvd.init(comm=[0])
        hvd.shutdown()
    hvd.init()
    communicators = process.job.engine_communicators
    hvd.shutdown()
    assert all(communicator == MPI.COMM_NULL for communicator in communicators)
    hvd.init()


@on_ranks(3, full=(4,))
def test_ranks_of_the_job(hvd):
    """Two jobs in one mpirun, each with sets of its own; a list in any order."""
    world = MPI.COMM_WORLD
    hvd.shutdown()
    ranks = [world.size - 1, 0] if world.rank in (0, world.size - 1) else list(range(1, world.size - 1))
    for _ in range(3):
        hvd.init(comm=ranks)
        assert hvd.size() == len(ranks) and hvd.rank() == sorted(ranks).index(world.rank)
        assert hvd.allgather_object(world.rank) == sorted(ranks)
        if hvd.size() > 1:
            only = hvd.add_process_set([1])
            assert only.included() == (hvd.rank() == 1)
        hvd.shutdown()
    hvd.init()


@on_ranks(1, 2, 3)
def test_no_ranks_of_the_job(hvd):
    world = MPI.COMM_WORLD
    hvd.shutdown()
    for comm in (
        [],
        [world.size],
        [world.rank, world.rank],
        3,
        "ab",
        [(world.rank + 1) % world.size + world.size * 9],
    ):
        with pytest.raises(ValueError, match=r"init\(comm=.* Received: "):
            hvd.init(comm=comm)
    if world.size > 1:
        with pytest.raises(ValueError, match=r"this one"):
            hvd.init(comm=[(world.rank + 1) % world.size])
        with pytest.raises(ValueError, match="COMM_NULL"):
            hvd.init(comm=MPI.COMM_NULL)
    hvd.init()


def test_other_ranks_take_no_part(passes):
    """Ranks that are not in the list never call init()."""
    output = passes(
        3,
        """
if world.rank != 1:
    hvd.init(comm=[0, 2])
    assert total(hvd.rank() + 1) == 3
    print("summed", flush=True)
""",
    )
    assert output.count("summed") == 2


def test_lists_that_differ(fails):
    """Ranks whose lists differ raise an error; the whole mpirun ends."""
    output = fails(3, "hvd.init(comm=[0, 1] if world.rank == 0 else [0, 1, 2])\n")
    assert "ValueError: The ranks of one job name different ranks in init(comm=...)" in output
    assert "[0, 1, 2]" in output


@pytest.mark.slow
def test_a_rank_that_never_comes_to_add_is_named(fails):
    output = fails(
        3,
        """
import time
hvd.init()
hvd.shutdown()
os.environ.update(TFDDL_STALL_WARNING="2", TFDDL_STALL_LIMIT="4")
hvd.init()
if world.rank == 1:
    time.sleep(300)
hvd.add_process_set([0, 2])
""",
    )
    assert "'process sets'; rank 1 has not submitted it" in output
    assert "RuntimeError: add_process_set: " in output


def test_a_rank_that_leaves_ends_its_sets_only(passes):
    """Two models train for different times: ranks 1 and 2 go on when the program of rank 0 has ended."""
    passes(
        4,
        """
import time
hvd.init(process_sets=[hvd.ProcessSet([0, 3]), hvd.ProcessSet([1, 2])])
from tfddl.runtime import process_sets
pair = process_sets.by_id(1 if world.rank in (0, 3) else 2)
assert total(world.rank, process_set=pair) == 3
if world.rank in (1, 2):
    try:
        hvd.allreduce(tf.constant(1.0), name="after the others have left")
        raise SystemExit(5)
    except tf.errors.UnknownError as error:
        assert "has shut down tfddl" in error.message, error.message
    time.sleep(2)  # longer than the limit for a rank that has ended
    for _ in range(100):
        assert total(world.rank, process_set=pair) == 3
""",
    )


@pytest.mark.slow
def test_a_failure_in_one_set_ends_the_job(fails):
    """The members wait for different collectives until the limit: rank 2, outside, raises too instead of waiting."""
    output = fails(
        3,
        """
hvd.init()
hvd.shutdown()
os.environ.update(TFDDL_STALL_WARNING="2", TFDDL_STALL_LIMIT="4")
hvd.init()
pair = hvd.add_process_set([0, 1])
try:
    if pair.included():
        hvd.allreduce(tf.constant(1.0), name="of rank %d" % world.rank, process_set=pair)
    hvd.allreduce(tf.constant(1.0), name="rank 2 waits for the others")
except tf.errors.UnknownError as error:
    print("rank %d heard: " % world.rank + error.message, flush=True)
    world.Barrier()  # the first rank that ends, ends all
    raise
""",
    )
    assert "tfddl: ranks 0, 1 wait for different collectives, none of which can run: " in output
    assert "rank 0: 'of rank 0' of process set 1 [0, 1]" in output
    assert all(f"rank {rank} heard: " in output for rank in range(3))
