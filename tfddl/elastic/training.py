"""run: calls a training function with a state that has been restored, again after each error of another rank."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tfddl.elastic import hand_over, survive
from tfddl.elastic.commits import Commits
from tfddl.elastic.errors import HorovodInternalError, HostsUpdatedInterrupt
from tfddl.elastic.state import State
from tfddl.runtime import basics
from tfddl.runtime.rank_queries import asking_again

_Function = TypeVar("_Function", bound=Callable[..., Any])

_taken: list[State] = []
"""The states that functions have been called with since the outermost call began."""


def run(func: _Function) -> _Function:
    """Makes a training function one that can go on: a decorator.

        state = hvd.elastic.KerasState(model, epoch=0)

        @hvd.elastic.run
        def train(state):
            for state.epoch in range(state.epoch, 10):
                ...
                state.commit()

        train(state)

    Under `tfddlrun --elastic` the state takes the newest commit before the function is called, if a job before has left one;
    where that job had another number of ranks, the state's `on_reset` follows. Then all ranks take the state of rank 0.

    After the death of other ranks the function is called again in this process, with the state of the last commit and after
    `on_reset`, if MPI has ULFM and the program does not depend on the old ranks. Else the processes end. tfddl itself raises
    no `HorovodInternalError`. When hosts come or go, a commit raises
    `HostsUpdatedInterrupt` on all ranks. The processes then end by `SystemExit`, and tfddlrun starts the program again
    on the new hosts.

    A program may raise both errors itself, on all ranks. After a `HorovodInternalError` the state goes back to its last
    commit, and the function is called again; after a `HostsUpdatedInterrupt` it is called with the state as it is.

    A function may call another one with a state of its own. After a death, all states that they have taken go back to their
    last commits, and the outermost function is called again.

    Args:
        func: The function. Its first argument is a `State`.

    Returns:
        A function with the same arguments and result. It raises what `func` raises, but for the two errors above.
    """

    @functools.wraps(func)
    def train(state: State, *arguments: Any, **options: Any) -> Any:
        if not state.is_kept:
            commits = Commits.of_state(f"{func.__module__}.{func.__qualname__} {state.kind()}")
            if commits:
                state.restore_from(commits)
        outermost = not _taken
        if all(each is not state for each in _taken):
            _taken.append(state)
        try:
            return train_with(state, outermost, arguments, options)
        finally:
            if outermost:
                _taken.clear()

    def train_with(state: State, outermost: bool, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        synchronize = True
        while True:
            try:
                if synchronize:
                    state.sync()
                with hand_over.possible() if state.is_kept else contextlib.nullcontext(), asking_again():
                    return func(state, *arguments, **options)
            except HorovodInternalError:
                state.restore()
                synchronize = True
            except HostsUpdatedInterrupt as interrupt:
                hand_over.end_if_agreed()
                synchronize = not interrupt.skip_sync
            except Exception:
                if not outermost or not survive.goes_on(adapts=all(each.adapts for each in _taken)):
                    raise
                for each in _taken:
                    each.go_on()
                synchronize = True
                continue
            basics.shutdown()
            basics.init()
            state.on_reset()

    return cast(_Function, train)
