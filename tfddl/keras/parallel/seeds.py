"""One seed for all ranks; other random numbers on each rank inside of a step."""

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.keras.parallel import part
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


def with_streams(plain: Callable[..., Any]) -> Callable[..., Any]:
    """`SeedGenerator.next`: the seeds that a step draws, for random layers and for `keras.random`, differ by rank.

    The generators' states stay equal on all ranks, and so do seeds that are drawn outside of a step.
    """

    @functools.wraps(plain)
    def draw(generator: Any, *arguments: Any, **options: Any) -> Any:
        seed = plain(generator, *arguments, **options)
        if part.current() is None:
            return seed
        return seed + tf.cast(tf.constant([basics.rank() * _STRIDE, 0], tf.int64), seed.dtype)

    return draw
