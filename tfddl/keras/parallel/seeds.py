"""One seed for all ranks; another stream for each rank in a model's random layers."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.keras.consistency.callback_list import Callback
from tfddl.ops.objects import broadcast_object
from tfddl.runtime import basics

# Odd, so that no two ranks below 2^32 get the same offset.
_STRIDE = 2654435761


def set_seed(seed: int | None) -> int:
    """Sets the seed of Python, NumPy, TensorFlow and Keras on all ranks; rank 0 draws one where none is given."""
    drawn = random.SystemRandom().getrandbits(31) if seed is None else seed
    drawn = broadcast_object(drawn, 0, name="DataParallel.seed")
    _compat.keras().utils.set_random_seed(drawn)
    return drawn


def take_states_of_rank_0() -> None:
    """All ranks go on with the random numbers of Python and NumPy where rank 0 does."""
    states = broadcast_object((random.getstate(), np.random.get_state()), 0, name="DataParallel.states")
    random.setstate(states[0])
    np.random.set_state(states[1])


@contextmanager
def other_streams() -> Iterator[None]:
    """The random operations of TensorFlow that are traced inside, such as `tf.random.normal`, differ by rank."""
    graph = tf.compat.v1.get_default_graph()
    before = graph.seed
    if not tf.executing_eagerly() and before is not None:
        graph.seed = before + basics.rank() * _STRIDE
    try:
        yield
    finally:
        graph.seed = before


class StreamsCallback(Callback):
    """Gives the random layers of the model another stream on each rank before training.

    Args:
        known: See `differ_by_rank`.
    """

    def __init__(self, known: dict[int, Any]) -> None:
        super().__init__()
        self._known = known

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Before the first step of a model that is built."""
        differ_by_rank(self.model, self._known)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """After the step that has built the model."""
        if batch == 0:
            differ_by_rank(self.model, self._known)


def differ_by_rank(model: Any, known: dict[int, Any]) -> None:
    """Moves the random generators of a model's layers, such as Dropout's, to this rank's own streams, each once.

    Args:
        model: A built model.
        known: The generators that have been moved, by id; gets the others.
    """
    for variable in model.variables:
        if _compat.is_seed_state(variable) and id(variable) not in known:
            known[id(variable)] = variable
            first, second = (int(number) for number in variable.numpy())
            variable.assign([(first + basics.rank() * _STRIDE) % 2**32, second])
