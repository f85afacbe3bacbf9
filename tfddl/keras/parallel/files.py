"""Files: rank 0 writes them, and downloads them before the first ranks of other hosts do."""

import functools
from collections.abc import Callable
from typing import Any

from tfddl.keras.consistency.first_rank import first
from tfddl.ops.objects import allgather_object
from tfddl.runtime import basics

_NAME = "DataParallel.files"


def by_rank_0(plain: Callable[..., Any], is_training: Callable[[], bool]) -> Callable[..., Any]:
    """A function that writes a file: other ranks wait for rank 0. In the callbacks of `fit` they go on at once.

    Args:
        plain: The function, whose result the other ranks do not get.
        is_training: Whether `fit` is under way.
    """

    @functools.wraps(plain)
    def write(*arguments: Any, **options: Any) -> Any:
        if is_training():
            return plain(*arguments, **options) if basics.rank() == 0 else None
        return first(basics.rank() == 0, functools.partial(plain, *arguments, **options), _NAME)

    return write


def after_rank_0(plain: Callable[..., Any], is_training: Callable[[], bool]) -> Callable[..., Any]:
    """A function that reads a file: in the callbacks of `fit` all ranks wait for each other first.

    Args:
        plain: The function.
        is_training: Whether `fit` trains.
    """

    @functools.wraps(plain)
    def read(*arguments: Any, **options: Any) -> Any:
        if is_training():
            allgather_object(None, name=_NAME)
        return plain(*arguments, **options)

    return read


def by_first_rank_of_host(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function that downloads a file unless it is there: once on each host, or once in a home that the hosts share.

    Rank 0 calls it first, then the first rank of each host, then the others.
    """

    @functools.wraps(plain)
    def download(*arguments: Any, **options: Any) -> Any:
        call = functools.partial(plain, *arguments, **options)
        turn = 0 if basics.rank() == 0 else 1 if basics.local_rank() == 0 else 2
        results = [first(turn == each, call, _NAME) for each in range(2)]
        return results[turn] if turn < 2 else call()

    return download
