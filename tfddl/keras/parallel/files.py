"""Files: rank 0 writes them, and downloads them before the first ranks of other hosts do.

All ranks enter a call that writes before rank 0 begins: a program may have asked whether the file is there, and all ranks
have to get the same answer.
"""

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from tfddl.keras.consistency.first_rank import first
from tfddl.ops.objects import allgather_object
from tfddl.runtime import basics, library
from tfddl.runtime.process_sets import global_process_set, id_of

_NAME = "DataParallel.files"
_written: dict[str, str] = {}  # paths of this rank, each with that of rank 0 in the same call


def by_rank_0(plain: Callable[..., Any], is_training: Callable[[], bool]) -> Callable[..., Any]:
    """A function that writes a file: other ranks wait for rank 0. In the callbacks of `fit` they go on at once.

    Args:
        plain: The function, whose result the other ranks do not get.
        is_training: Whether `fit` is under way.
    """
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def write(*arguments: Any, **options: Any) -> Any:
        if is_training():
            return plain(*arguments, **options) if basics.rank() == 0 else None
        path = _path(signature, arguments, options)
        _enter(f"model.{plain.__name__.removesuffix('_model')}({path!r})", [path])
        return first(basics.rank() == 0, functools.partial(plain, *arguments, **options), _NAME)

    return write


def after_rank_0(plain: Callable[..., Any], is_training: Callable[[], bool]) -> Callable[..., Any]:
    """A function that reads a file: in the callbacks of `fit` all ranks wait for each other first.

    Args:
        plain: The function.
        is_training: Whether `fit` trains.
    """
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def read(*arguments: Any, **options: Any) -> Any:
        if is_training():
            allgather_object(None, name=f"{_NAME}.read")
        path = _path(signature, arguments, options)
        if path and not os.path.exists(path):
            _check_same_path(path)
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
        _enter("keras.utils.get_file", [])
        results = [first(turn == each, call, _NAME) for each in range(2)]
        return results[turn] if turn < 2 else call()

    return download


def exchange_paths(paths: list[str], name: str) -> None:
    """Tells all ranks which paths rank 0 has. All ranks call it.

    Args:
        paths: Of the files that rank 0 will write, in one order on all ranks; "" is none.
        name: Names the collective.
    """
    theirs, *_ = allgather_object(paths, name=name)
    _written.update(zip(paths, theirs, strict=False))


def _check_same_path(path: str) -> None:
    """Raises if rank 0 has written a file under another path than that where this rank looks for it.

    Raises:
        FileNotFoundError: It has.
    """
    folder, name = os.path.split(path)
    folders = {os.path.dirname(mine): os.path.dirname(theirs) for mine, theirs in _written.items()}
    theirs = _written.get(path) or os.path.join(folders.get(folder, folder), name)
    if theirs != path:
        raise FileNotFoundError(
            "DataParallel: process 0 alone writes model files, and this process looks for the file under another path. "
            "Give all processes the same path, without tempfile.mkdtemp(), a time or a process id in it: "
            "os.makedirs('run', exist_ok=True), then 'run/best.keras'. "
            f"Received: {theirs!r} on process 0; {path!r} on process {basics.rank()}"
        )


def _enter(call: str, paths: list[str]) -> None:
    """Waits until all ranks are in this call. If some wait for each other elsewhere, the job ends after ten seconds."""
    note = (
        f"in {call}, which all processes have to call, because process 0 writes and the others wait for the file; if the "
        "call is in an if, make its condition the same on all processes"
    )
    for part in ("size", "bytes"):
        library.note(id_of(global_process_set, _NAME), f"{_NAME}.{part}", note)
    exchange_paths(paths, _NAME)


def _path(signature: inspect.Signature, arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    """The path among the arguments of a function that saves or loads; "" if the file is none with a path."""
    try:
        path = signature.bind(*arguments, **options).arguments.get("filepath")
    except TypeError:  # Keras will say what is wrong
        return ""
    return os.path.abspath(path) if isinstance(path, (str, os.PathLike)) else ""
