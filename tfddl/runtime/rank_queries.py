"""The questions of the program about the ranks: a loss changes the answers.

A job that goes on in its processes after a loss (`tfddl.runtime.survival`) may not keep a graph with an old number in it,
nor data that was dealt to the ranks before.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

SURVIVE_VARIABLE = "TFDDL_SURVIVE"


@dataclass
class RankQueries:
    """The first call of each kind, as `hvd.size()`; empty if there was none.

    Attributes:
        in_trace: A call whose answer has become a constant of a graph.
        size: A call whose answer depends on the number of ranks.
        rank: A call whose answer depends on the number of this rank.
        data: A call that has dealt data to the ranks.
        divided: An object whose state is divided among the ranks.
        runs_again: Whether the program is in a function that runs again after a loss, so that it asks again.
    """

    in_trace: str = ""
    size: str = ""
    rank: str = ""
    data: str = ""
    divided: str = ""
    runs_again: bool = False


queries = RankQueries()


@functools.cache
def may_survive() -> bool:
    """Whether tfddlrun has started a job that may go on in its processes after a loss."""
    return os.environ.get(SURVIVE_VARIABLE) == "1"


@contextlib.contextmanager
def asking_again() -> Iterator[None]:
    """A context for a function that runs again after a loss: there the program may ask, but not in a graph."""
    before, queries.runs_again = queries.runs_again, True
    try:
        yield
    finally:
        queries.runs_again = before


def note(kind: str, call: str) -> None:
    """Notes a call.

    Args:
        kind: The attribute of `RankQueries` for a call outside of graphs: "size", "rank" or "data".
        call: The call, for a message.
    """
    if not may_survive():
        return
    if _is_tracing():
        queries.in_trace = queries.in_trace or call
    elif not queries.runs_again and not getattr(queries, kind):
        setattr(queries, kind, call)


def note_program(kind: str, call: str) -> None:
    """Notes a call of the caller's function, unless the call comes from tfddl itself."""
    if may_survive() and not _is_ours(sys._getframe(2)):
        note(kind, call)


def note_op(kind: str, call: str) -> None:
    """Notes a call of the caller's function as `note_program` does, unless it adds an operation to a graph."""
    if may_survive() and not _is_tracing() and not _is_ours(sys._getframe(2)):
        note(kind, call)


def note_trace(call: str) -> None:
    """Notes a call of tfddl itself, whose answer it needs for one operation."""
    if may_survive() and _is_tracing():
        queries.in_trace = queries.in_trace or call


def note_divided(owner: str) -> None:
    """Notes an object that divides its state among the ranks."""
    if may_survive():
        queries.divided = queries.divided or owner


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("tfddl.")


def _is_tracing() -> bool:
    tf = sys.modules.get("tensorflow")
    return tf is not None and bool(tf.inside_function())
