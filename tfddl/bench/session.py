"""One run of `tfddl bench`: a job for each adapter, and the rounds over all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from tfddl.bench.adapters import Adapter
from tfddl.bench.case import Case
from tfddl.bench.place import Place
from tfddl.bench.rounds import Timing, interleave
from tfddl.bench.worker_group import WorkerError, WorkerGroup

T = TypeVar("T")

_KEPT_BYTES = 32 << 20
"""Larger data is made for each block and freed after it, since the data of all adapters together would not fit."""


def calls_for(case: Case) -> int:
    """The number of calls in a block."""
    return case.steps or max(3, min(200, (32 << 20) // case.bytes) // case.links)


def kept(case: Case) -> bool:
    """Whether the data of a case stays from block to block. A model does, since its steps follow on one another."""
    return case.operation == "training" or case.bytes <= _KEPT_BYTES


class Session:
    """The workers of all adapters, from start to end.

    Args:
        adapters: Adapters to start, by name.
        place: Where the workers of each adapter run.
        say: Takes a line of text about the progress.

    Attributes:
        failed: The errors of adapters that failed, by name. Their earlier timings stay valid.
    """

    def __init__(
        self,
        adapters: dict[str, Adapter],
        place: Place,
        say: Callable[[str], None],
    ):
        self.failed: dict[str, str] = {}
        self._say = say
        self._groups: dict[str, WorkerGroup] = {}
        for name, adapter in adapters.items():
            say(f"starting {adapter.title}")
            try:
                self._groups[name] = WorkerGroup(adapter, place)
            except WorkerError as error:
                self._drop(name, error)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups.values():
            group.close()

    def measure(self, case: Case, rounds: int) -> dict[str, Timing]:
        """Times all adapters that support the case.

        Args:
            case: The operation and its data.
            rounds: Blocks of each adapter, besides one that warms up.

        Returns:
            Timings by name.
        """
        names = [name for name in list(self._groups) if self._try(name, lambda group: _prepare(group, case))]
        run = functools.partial(_block, case=case)
        return interleave({name: functools.partial(self._try, name, run) for name in names}, rounds)

    def _try(self, name: str, action: Callable[[WorkerGroup], T]) -> T | None:
        """Returns `action`'s result; None if the adapter fails, which is dropped then, or has failed before."""
        if name not in self._groups:
            return None
        try:
            return action(self._groups[name])
        except WorkerError as error:
            self._drop(name, error)
            return None

    def _drop(self, name: str, error: WorkerError) -> None:
        self.failed[name] = str(error)
        self._say(str(error))
        if name in self._groups:
            self._groups.pop(name).close()


def _prepare(group: WorkerGroup, case: Case) -> bool:
    able = case.operation in group.adapter.operations and group.prepare(case)
    if able and not kept(case):
        group.release()
    return able


def _block(group: WorkerGroup, case: Case) -> tuple[float, int]:
    """The seconds of a collective, or of a step, and the wrong elements."""
    if not kept(case):
        group.prepare(case)
    seconds, wrong = group.block(calls_for(case))
    if not kept(case):
        group.release()
    return seconds / case.links, wrong
