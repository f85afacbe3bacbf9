"""Broadcast and allgather of Python objects, which cloudpickle turns into bytes: also lambdas, and classes of the script."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import tensorflow as tf

from tfddl.ops import native
from tfddl.ops.collective import check_callable
from tfddl.runtime import basics
from tfddl.runtime.agreement import by_rank
from tfddl.runtime.process_sets import ProcessSet, global_process_set, id_of

_DEVICE = "CPU:0"  # of the bytes


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives every rank the object of `root_rank`.

    Args:
        obj: On the root the object to send, which cloudpickle must take. Other ranks may give any object.
        root_rank: The sender, the same on all ranks: its rank in the job, with any process set.
        session: The `tf.compat.v1.Session` to run in. Defaults to the default session; not used in eager mode.
        name: The name on which ranks agree. Defaults to `"broadcast_object"`; needed only for concurrent calls.
        process_set: See `allreduce`.

    Returns:
        On the root `obj` itself, on other ranks an equal object.

    Raises:
        TypeError: On all ranks, when the root's object cannot be pickled; on one rank, when it cannot be unpickled there.
        ValueError: tfddl is not initialized, or the call is inside a `tf.function`.
        tf.errors.InvalidArgumentError: `root_rank` is no member of `process_set`.

    Example:
        On 2 ranks:

        >>> hvd.broadcast_object({"rate": 0.1} if hvd.rank() == 0 else None, root_rank=0)
        {'rate': 0.1}
    """
    kind = name or "broadcast_object"
    check_callable("broadcast_object")
    number, own = id_of(process_set, "broadcast_object"), basics.rank() == root_rank
    fine, payload = _pickled(obj) if own else (True, b"")

    def send(tensor: tf.Tensor, part: str) -> tf.Tensor:
        return native.broadcast(tensor, root_rank, f"{kind}.{part}", number)

    fine, length = _run(
        send, np.array([fine, len(payload)], "int64"), "size", kind, session, number, root_rank
    )
    codes = np.frombuffer(payload, "uint8") if own else np.zeros(length, "uint8")
    received = _run(send, codes, "bytes", kind, session, number, root_rank)
    if not fine:
        raise TypeError(_not_pickled("broadcast_object", {root_rank: received}))
    return obj if own else _unpickled("broadcast_object", root_rank, received)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns `broadcast_object` with all arguments but the object fixed.

    Args, returns and raises are those of `broadcast_object`.
    """

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gives every rank the objects of all ranks.

    Args:
        obj: The object of this rank, which cloudpickle must take.
        session: See `broadcast_object`.
        name: See `broadcast_object`. Defaults to `"allgather_object"`.
        process_set: See `allreduce`.

    Returns:
        The objects of all ranks that have not joined, in the order of the ranks.

    Raises:
        TypeError: On all ranks, when an object cannot be pickled; on one rank, when one cannot be unpickled there.
        ValueError: tfddl is not initialized, or the call is inside a `tf.function`.

    Example:
        On 2 ranks:

        >>> hvd.allgather_object(f"rank {hvd.rank()}")
        ['rank 0', 'rank 1']
    """
    kind = name or "allgather_object"
    check_callable("allgather_object")
    number = id_of(process_set, "allgather_object")
    fine, payload = _pickled(obj)

    def send(tensor: tf.Tensor, part: str) -> tf.Tensor:
        return native.allgather(tensor, f"{kind}.{part}", number)

    mine = np.array([fine, len(payload), basics.rank()], "int64")
    sizes = _run(send, mine, "size", kind, session, number).reshape(-1, 3)
    received = _run(send, np.frombuffer(payload, "uint8"), "bytes", kind, session, number)
    parts = dict(zip(sizes[:, 2], np.split(received, np.cumsum(sizes[:-1, 1])), strict=True))
    failed = {rank: parts[rank] for fine, _, rank in sizes if not fine}
    if failed:
        raise TypeError(_not_pickled("allgather_object", failed))
    return [_unpickled("allgather_object", rank, part) for rank, part in parts.items()]


def _run(
    send: Callable[[tf.Tensor, str], tf.Tensor],
    value: np.ndarray,
    part: str,
    kind: str,
    session: Any,
    *more: int,
) -> np.ndarray:
    """Sends a vector, eagerly or in a session. The graph of a session gets each op once."""
    if tf.executing_eagerly() and session is None:
        with tf.device(_DEVICE):
            return send(tf.constant(value), part).numpy()
    session = session or tf.compat.v1.get_default_session()
    if session is None:
        graph = tf.compat.v1.get_default_graph()
        where = (
            f"in the tf.function {graph.name!r}"
            if graph.building_function
            else "in a graph, without a session"
        )
        raise ValueError(
            f"{kind} runs at once, and cannot become part of a tf.function or graph: call it in eager mode, or with "
            f"a tf.compat.v1.Session. Received: a call {where}"
        )
    graph, key = session.graph, (kind, part, *more)
    if not hasattr(graph, "_tfddl_objects"):
        graph._tfddl_objects = {}
    if key not in graph._tfddl_objects:
        with graph.as_default(), tf.device(_DEVICE):
            feed = tf.compat.v1.placeholder(value.dtype, [None])
            graph._tfddl_objects[key] = feed, send(feed, part)
    feed, fetch = graph._tfddl_objects[key]
    return session.run(fetch, {feed: value})


def _pickled(obj: Any) -> tuple[bool, bytes]:
    """Whether the object could be pickled, and its bytes or the error. Other ranks wait, so an error is sent too."""
    try:
        return True, cloudpickle.dumps(obj)
    except Exception as error:
        return False, f"{type(error).__name__}: {error}. Received: an object of {type(obj)}".encode()


def _unpickled(kind: str, rank: int, codes: np.ndarray) -> Any:
    try:
        return pickle.loads(codes.data)
    except Exception as error:
        raise TypeError(
            f"{kind}: rank {basics.rank()} cannot unpickle the object of rank {rank}: define its class in a module that "
            f"all ranks import. Received: {type(error).__name__}: {error}"
        ) from error


def _not_pickled(kind: str, failed: dict[int, np.ndarray]) -> str:
    reasons = by_rank({rank: codes.tobytes().decode() for rank, codes in failed.items()})
    return f"{kind} sends objects that cloudpickle takes: send the parts of it that are plain data. {reasons}"
