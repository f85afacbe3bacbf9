"""Bodies that go wrong on purpose: test_harness.py runs them and reads the report."""

import os
import time

import pytest

from tests.harness.on_ranks import on_ranks


@on_ranks(2)
def passes(comm):
    assert comm.allreduce(comm.rank) == 1


@on_ranks(2)
def changes_what_others_see(comm, monkeypatch):
    assert "TFDDL_PLANTED" not in os.environ and os.getpid is not None
    monkeypatch.setenv("TFDDL_PLANTED", "1")
    monkeypatch.setattr(os, "getpid", None)


@on_ranks(2)
def fails_on_rank_1(comm):
    expected = 5
    if comm.rank == 1:
        assert comm.rank == expected, "wrong on purpose"


@on_ranks(2)
def hangs_on_rank_0(comm):
    if comm.rank == 0:
        time.sleep(1000)


@on_ranks(2)
def fails_on_rank_1_while_0_waits(comm):
    if comm.rank == 1:
        raise ValueError("before the collective")
    comm.Barrier()


@on_ranks(2)
def dies_on_rank_1(comm):
    if comm.rank == 1:
        os._exit(7)
    time.sleep(1000)


@on_ranks(2)
def skips(comm):
    pytest.skip("not here")


@on_ranks(2)
def says_who_it_is(comm, expected):
    assert os.getpid() == expected[comm.rank]
