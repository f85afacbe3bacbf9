"""The whole state of a sharded optimizer: for files that any number of ranks can load, and from them."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl.ops import variables
from tfddl.ops.variables import whole_of


def whole_values(optimizer: Any) -> Iterator[np.ndarray]:
    """The values of the optimizer's variables, as the plain optimizer would have them. All ranks read all of them.

    Args:
        optimizer: A sharded optimizer that is built.

    Returns:
        One array for each variable. Few variables at a time are whole.
    """
    return variables.whole_values(optimizer.variables, lambda each: tf.convert_to_tensor(each).numpy())


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
