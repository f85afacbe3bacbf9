"""The collectives of `horovod.keras`, which take and return values."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.compat.horovod import collectives
from tfddl.ops.compression import Compression
from tfddl.ops.constants import Average


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """The reduction of a value over all ranks.

    Args:
        value: A number, an array or a tensor.
        name: See `tfddl.allreduce`; the others too.

    Returns:
        A tensor; in a graph of TF1, which a session runs, the value.
    """
    return _computed(
        collectives.allreduce(
            tf.convert_to_tensor(value),
            average,
            name=name,
            op=op,
            compression=compression,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """The values of all ranks, joined along the first dimension. See `allreduce`."""
    return _computed(collectives.allgather(tf.convert_to_tensor(value), name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of one rank. See `allreduce`."""
    return _computed(collectives.broadcast(tf.convert_to_tensor(value), root_rank, name))


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """This rank's rows of the reduction. See `allreduce`."""
    return _computed(collectives.reducescatter(tf.convert_to_tensor(value), name=name, op=op))


def _computed(result: tf.Tensor) -> Any:
    if tf.executing_eagerly() or tf.inside_function():
        return result
    return _compat.session().run(result)
