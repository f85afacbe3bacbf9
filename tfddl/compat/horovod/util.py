"""Helpers that programs import from Horovod's modules of that name."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfddl.ops.allreduce import reduce_op
from tfddl.runtime import features
from tfddl.runtime.job import current
from tfddl.runtime.process_sets import members

_RANK_AND_SIZE = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


class _Basics:
    """The object that Horovod's modules share, as far as programs look into it."""

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return {number: members(process_set) for number, process_set in current().sets.items()}


BASICS = _Basics()


def check_extension(*arguments: Any, **options: Any) -> None:
    """Does nothing: `init()` says whether the library is there."""


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether there is support for a framework, such as `"tensorflow"`."""
    return ext_base_name == "tensorflow"


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """See `tfddl.gpu_available`."""
    return features.gpu_available()


def _executing_eagerly() -> bool:
    return bool(tf.executing_eagerly())


def _make_subgraph(function: Callable[..., Any]) -> Any:
    return tf.function(function)


def _cache(function: Callable[..., Any]) -> Callable[..., Any]:
    """Caches results by the arguments, separately for eager mode and graphs."""
    results: dict[Any, Any] = {}

    @functools.wraps(function)
    def cached(*arguments: Any) -> Any:
        key = arguments, _executing_eagerly()
        if key not in results:
            results[key] = function(*arguments)
        return results[key]

    return cached


def vars_to_refs(variables: Any) -> Any:
    """Replaces variables, in lists of lists, by their hashable references; lists become tuples."""
    return tuple(map(vars_to_refs, variables)) if isinstance(variables, list) else variables.ref()


def refs_to_vars(references: Any) -> Any:
    """The opposite of `vars_to_refs`."""
    return list(map(refs_to_vars, references)) if isinstance(references, tuple) else references.deref()


def split_list(items: Sequence[Any], n: int) -> list[Any]:
    """Splits a sequence into n parts, of which the first ones have one item more if it does not divide."""
    size, longer = divmod(len(items), n)
    bounds = [index * size + min(index, longer) for index in range(n + 1)]
    return [items[begin:end] for begin, end in itertools.pairwise(bounds)]


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank.bit_count() == 1


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """See `num_rank_is_power_2`. Adasum of tfddl takes any number of ranks."""
    return num_rank_is_power_2(num_rank)


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """The operation that `op` or the older `average` asks for.

    Raises:
        ValueError: Both are given.
    """
    return reduce_op("allreduce", op, average)


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, Any], Any]:
    """Returns `handle_average_backwards_compatibility`."""
    return handle_average_backwards_compatibility


def is_iterable(value: Any) -> bool:
    """Whether a value can be iterated over."""
    try:
        iter(value)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version is at least another: `is_version_greater_equal_than(tf.__version__, "2.11.0")`."""
    from packaging.version import Version

    return Version(ver) >= Version(target)


@contextlib.contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Sets environment variables for a block. A variable that is None stays as it is."""
    given = {name: value for name, value in variables.items() if value is not None}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def get_env_rank_and_size() -> tuple[int, int]:
    """The rank and the number of ranks that the launcher's variables tell; (0, 1) without a launcher."""
    for rank, size in _RANK_AND_SIZE:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Starts a thread and returns it. `silent` hides what it raises."""

    def quiet(*arguments: Any) -> None:
        with contextlib.suppress(Exception):
            target(*arguments)

    thread = threading.Thread(target=quiet if silent else target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread
