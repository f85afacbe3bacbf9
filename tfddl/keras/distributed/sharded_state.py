"""Loads a sharded optimizer from a file, which holds the whole state for any number of ranks."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfddl.ops.variables import whole_of


def load(optimizer: Any, store: Mapping[str, Any]) -> None:
    """Takes this rank's slices of whole variables.

    Args:
        optimizer: A sharded optimizer that is built.
        store: As many whole values as the optimizer has variables, by the index of the variable as text.

    Raises:
        ValueError: A value has another shape than its variable.
    """
    for index, variable in enumerate(optimizer.variables):
        value, whole = np.asarray(store[str(index)]), whole_of(variable)
        shape = tuple(variable.shape) if whole is None else whole.shape
        if value.shape != shape:
            raise ValueError(
                "The state in the file is that of another model: use an optimizer with the variables that the state was "
                f"saved with. Received: shape {value.shape} for {variable.path} of shape {shape}"
            )
        (variable if whole is None else whole).assign(value)
