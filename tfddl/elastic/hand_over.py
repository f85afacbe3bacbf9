"""Ends a job at a commit, so that tfddlrun starts it again on other hosts.

tfddlrun tells the supervisors of all ranks that hosts have changed; each leaves a file in the folder of its host's commits
(`tfddl.launch.rank_shim`). A rank that gets SIGTERM tells its supervisor that the host leaves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from tfddl.launch import rank_shim
from tfddl.ops.allreduce import allreduce
from tfddl.ops.constants import Max
from tfddl.runtime.log import warn_once

_agreed = False
_training = False


@contextlib.contextmanager
def possible() -> Iterator[None]:
    """While `hvd.elastic.run` trains a state whose commits are kept, ranks may agree on the end of this start."""
    global _training
    before, _training = _training, True
    watch_sigterm()
    try:
        yield
    finally:
        _training = before


def agree() -> bool:
    """Whether hosts have changed, so that this commit is the last one here. All ranks call it, and get the same answer."""
    global _agreed
    if not _training:
        return False
    if _agreed:
        warn_once(
            "The hosts have changed, and the job still runs on the old ones: let HostsUpdatedInterrupt pass through to "
            "hvd.elastic.run, without `except Exception`."
        )
    told = os.path.exists(_file(rank_shim.HAND_OVER_FILE))
    # Some ranks may not have been told yet.
    _agreed = bool(allreduce(tf.constant(int(told)), op=Max, name="elastic.hand_over"))
    return _agreed


def end_if_agreed() -> None:
    """Ends this process if the ranks have agreed."""
    if not _agreed:
        return
    ended = Path(_file(rank_shim.HANDED_OVER_FILE, os.getsid(0)))
    try:
        ended.touch()
    except OSError:
        # Without room for one more file, the first rank of the host takes the file of the supervisors. One rank is enough.
        with contextlib.suppress(OSError):
            os.rename(_file(rank_shim.HAND_OVER_FILE), ended)
    sys.exit(0)


def watch_sigterm() -> None:
    """Takes SIGTERM from now on as a notice that this host leaves, unless the program has a handler of its own."""
    if (
        rank_shim.JOB_VARIABLE not in os.environ
        or threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        return
    rank, session = os.getpid(), os.getsid(0)
    supervisor = _parent(session)

    def leave(*_: object) -> None:
        if os.getpid() != rank:  # a child, which its parent wants to end
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            os.kill(supervisor, signal.SIGTERM)

    path = Path(_file(rank_shim.CATCHES_FILE, session))
    with contextlib.suppress(OSError):  # without room for the file this rank dies of SIGTERM
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(str(rank))
        # After the file: the supervisor kills a rank that would not die of SIGTERM.
        signal.signal(signal.SIGTERM, leave)


def _file(kind: str, session: int | None = None) -> str:
    given = os.environ.get
    return rank_shim.rank_file(
        given(rank_shim.COMMITS_VARIABLE, ""), given(rank_shim.JOB_VARIABLE, ""), kind, session
    )


def _parent(process: int) -> int:
    """The process that has started another one."""
    stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
    return int(stat.rpartition(")")[2].split()[1])
