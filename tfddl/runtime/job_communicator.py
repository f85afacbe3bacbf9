"""The MPI communicator of the job, from the argument of `init(comm=...)`."""

from __future__ import annotations

import operator
import time
from typing import Any

from tfddl.runtime import agreement

_TAG = 32001  # MPI gives at least 32767
_SLEEP = 0.001  # seconds between two looks for messages


def is_communicator(value: Any) -> bool:
    """Whether `value` is a communicator of mpi4py; works without loading mpi4py."""
    return hasattr(value, "Get_group") and hasattr(value, "Is_inter")


def numbers(values: Any) -> list[int] | None:
    """The ranks in `values`, sorted; None if some are no ints, are negative, or appear twice."""
    try:
        found = sorted(operator.index(value) for value in values)
    except TypeError:
        return None
    return found if len(set(found)) == len(found) and (not found or found[0] >= 0) else None


def communicator(MPI: Any, comm: Any) -> Any:
    """Makes a communicator of all ranks of the job, which only tfddl uses.

    Args:
        MPI: `mpi4py.MPI`, initialised.
        comm: The argument of `init()`.

    Raises:
        ValueError: This process is not among the ranks, or other ranks have given different ranks.
    """
    if comm is None:
        return MPI.COMM_WORLD.Dup()
    if is_communicator(comm):
        if comm == MPI.COMM_NULL:
            raise ValueError(
                "init(comm=...) takes a communicator that this process is in: call it on the members only. "
                "Received: MPI.COMM_NULL"
            )
        return comm.Dup()
    world = MPI.COMM_WORLD
    wanted = numbers(comm)
    if not wanted or wanted[-1] >= world.size or world.rank not in wanted:
        raise ValueError(
            f"init(comm=...) takes an mpi4py communicator, or ranks of MPI.COMM_WORLD: name each rank once, this one "
            f"({world.rank}) among them, all below {world.size}. Received: {comm!r}"
        )
    _compare(MPI, wanted)
    return part(world, wanted, _TAG)


def part(whole: Any, ranks: list[int], tag: int) -> Any:
    """Makes a communicator of some ranks of `whole`. Only these ranks call it, with equal arguments."""
    everybody = whole.Get_group()
    group = everybody.Incl(ranks)
    try:
        return whole.Create_group(group, tag)
    finally:
        group.Free()
        everybody.Free()


def _compare(MPI: Any, mine: list[int]) -> None:
    """Exchanges the lists with all ranks that this rank names: with different lists MPI would wait for ever."""
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
            "The ranks of one job name different ranks in init(comm=...): pass the same list on each of them.",
        )
        missing.discard(source)
    MPI.Request.waitall(sent)
