"""After the loss of other ranks: whether this process goes on with the ranks that are left, or the program starts again."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tfddl.keras.parallel.part import TRACED
from tfddl.launch import rank_shim
from tfddl.runtime import basics, failure, survival
from tfddl.runtime.rank_queries import may_survive, queries


def goes_on(*, adapts: bool = False, in_fit: bool = False) -> bool:
    """Makes the ranks that are left the ranks of the job, if other ranks have died. All ranks that are left call it.

    Args:
        adapts: Whether the program is told of the new ranks and sizes.
        in_fit: Whether `fit` with an ElasticCallback is to go on. It traces the functions of Keras again that
            DataParallel has divided.

    Returns:
        Whether the job goes on here, to be restored from its last commit. False if no rank has died.
    """
    if not may_survive() or not survival.job_has_lost():
        return False

    def accepts(renumbered: bool) -> bool:
        in_trace = "" if in_fit and queries.in_trace == TRACED else queries.in_trace
        before = queries.data
        if not adapts:
            before = before or queries.size or (queries.rank if renumbered else "")
        if in_trace:
            failure.abort(
                f"ranks were lost, and the program starts again, since a tf.function has {in_trace} as a constant; use "
                "hvd.size_op() and hvd.rank_op() for the numbers of ranks in graphs, which are no constants"
            )
        if queries.divided:
            failure.abort(
                f"ranks were lost, and the program starts again, since {queries.divided} has divided its state among the "
                "ranks; use hvd.DistributedOptimizer where the job is to go on in its processes"
            )
        if before:
            advice = (
                "leave it as it is: ElasticCallback goes on from its last commit"
                if in_fit
                else "write the call in the function of hvd.elastic.run if the job is to go on in its processes"
            )
            failure.abort(
                f"ranks were lost, and the program starts again, since it has called {before} before it began to train; "
                f"{advice}"
            )
        return True

    if not survival.go_on_without_the_lost(accepts):
        return False
    _tell()
    return True


def _tell() -> None:
    """Tells tfddlrun, by its supervisor, that this rank goes on, and with how many others."""
    folder, job = (os.environ.get(name, "") for name in (rank_shim.COMMITS_VARIABLE, rank_shim.JOB_VARIABLE))
    path = Path(rank_shim.rank_file(folder, job, rank_shim.GOES_ON_FILE, os.getsid(0)))
    part = path.with_suffix(".part")
    with contextlib.suppress(OSError):  # without room for the file tfddlrun starts the job again
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.write_text(str(basics.size()))
        part.rename(path)
