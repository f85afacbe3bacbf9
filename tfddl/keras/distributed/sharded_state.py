"""The whole state of a sharded optimizer: for files that any number of ranks can load, and from them."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl.keras.distributed.settings import settings_of
from tfddl.keras.distributed.slices import Slices
from tfddl.ops.allgather import allgather
from tfddl.runtime import library
from tfddl.runtime.process_sets import id_of

_NAME = "ShardedOptimizer.state"
_NOTE = (
    "collecting the state of a ShardedOptimizer, of which each rank has a slice; save on all ranks, not on one alone: "
    "rank 0 writes the file"
)


def whole_values(optimizer: Any, slices: Slices) -> Iterator[np.ndarray]:
    """The values of the optimizer's variables, as the plain optimizer would have them. All ranks read all of them.

    If other ranks train on instead, the watchdog ends the job after ten seconds, and its message contains `_NOTE`.

    Args:
        optimizer: A sharded optimizer that is built.
        slices: Its slices.

    Yields:
        One array for each variable. One variable at a time is whole.
    """
    process_set = settings_of(optimizer).options.process_set
    for index, variable in enumerate(optimizer.variables):
        piece, value = slices.slice_of_slot(variable), tf.convert_to_tensor(variable)
        if piece is None:
            yield value.numpy()
            continue
        if slices.ranks > 1:
            name = f"{_NAME}.{index}"
            library.native().tfddl_note(id_of(process_set, _NAME), name.encode(), _NOTE.encode())
            value = allgather(value, name=name, process_set=process_set)
        yield value.numpy().reshape(piece.whole.shape)


def sliced(optimizer: Any, slices: Slices, store: Any) -> Mapping[str, Any]:
    """A store of whole variables with the slices of this rank in their place.

    Args:
        optimizer: A sharded optimizer that is built.
        slices: Its slices.
        store: Whole values, by the index of the variable as text; with another number of values it is returned unchanged,
            for the message of Keras.

    Raises:
        ValueError: A value has another shape than its variable.
    """
    variables = optimizer.variables
    if len(store.keys()) != len(variables):
        return store
    found: dict[str, Any] = {}
    for index, variable in enumerate(variables):
        value, piece = np.asarray(store[str(index)]), slices.slice_of_slot(variable)
        shape = tuple(variable.shape if piece is None else piece.whole.shape)
        if value.shape != shape:
            raise ValueError(
                "The state in the file is that of another model: use an optimizer with the variables that the state was "
                f"saved with. Received: shape {value.shape} for {variable.path} of shape {shape}"
            )
        found[str(index)] = value if piece is None else piece.of_array(value)
    return found
