"""Which processes of MPI are the job: `init(comm=...)`."""

from __future__ import annotations

import operator
import time
from typing import Any

from tfddl.runtime import agreement

_TAG = 32001  # MPI gives at least 32767
_SLEEP = 0.001  # seconds between two looks for messages


def is_communicator(value: Any) -> bool:
    """Whether it is a communicator of mpi4py, which may not be loaded."""
    return hasattr(value, "Get_group") and hasattr(value, "Is_inter")


def numbers(values: Any) -> list[int] | None:
    """Ranks, sorted; None when they are no ints, negative, or not all different."""
    try:
        found = sorted(operator.index(value) for value in values)
    except TypeError:
        return None
    return found if len(set(found)) == len(found) and (not found or found[0] >= 0) else None


def communicator(MPI: Any, comm: Any) -> Any:
    """A communicator of all ranks of the job, for tfddl alone.

    Args:
        MPI: `mpi4py.MPI`, initialised.
        comm: What `init()` was given.

    Raises:
        ValueError: This process is not among the ranks, or other ranks have given other ones.
    """
    if comm is None:
        return MPI.COMM_WORLD.Dup()
    if is_communicator(comm):
        if comm == MPI.COMM_NULL:
            raise ValueError(
                "init(comm=...) takes a communicator that this process is in. Received: MPI.COMM_NULL"
            )
        return comm.Dup()
    world = MPI.COMM_WORLD
    wanted = numbers(comm)
    if not wanted or wanted[-1] >= world.size or world.rank not in wanted:
        raise ValueError(
            f"init(comm=...) takes an mpi4py communicator, or ranks of MPI.COMM_WORLD, which has {world.size}, that differ "
            f"and include this one, {world.rank}. Received: {comm!r}"
        )
    _compare(MPI, wanted)
    return part(world, wanted, _TAG)


def part(whole: Any, ranks: list[int], tag: int) -> Any:
    """A communicator of some of a communicator's ranks; only these call it, with equal arguments."""
    everybody = whole.Get_group()
    group = everybody.Incl(ranks)
    try:
        return whole.Create_group(group, tag)
    finally:
        group.Free()
        everybody.Free()


def _compare(MPI: Any, mine: list[int]) -> None:
    """Exchanges the lists with all ranks that this one names; a communicator of different lists would never come."""
    world = MPI.COMM_WORLD
    peers = [rank for rank in mine if rank != world.rank]
    sent = [world.isend(mine, rank, _TAG) for rank in peers]
    missing = set(peers)
    status = MPI.Status()
    while missing:
        if not world.iprobe(MPI.ANY_SOURCE, _TAG, status):
            time.sleep(_SLEEP)
            continue
        source = status.Get_source()
        theirs = world.recv(source=source, tag=_TAG)
        if theirs != mine and source not in peers:
            world.send(mine, source, _TAG)  # the source waits for this list
        agreement.check_equal(
            {world.rank: mine, source: theirs},
            "Ranks that belong to one job have to give init(comm=...) the same ranks.",
        )
        missing.discard(source)
    MPI.Request.waitall(sent)
