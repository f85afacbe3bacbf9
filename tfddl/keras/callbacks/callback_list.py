"""The list that `fit` makes of its callbacks, which none of them gets to see."""

import functools
from typing import Any

from tfddl import _compat


@functools.cache
def watch() -> None:
    """Has Keras' CallbackList complete itself when it holds callbacks of ours.

    `fit` makes the list and adds to its end; nothing calls us at that moment. Therefore the class itself
    looks, when an instance is made. The change does nothing for lists without our callbacks.
    """
    original = _compat.keras().callbacks.CallbackList
    plain_init = original.__init__

    @functools.wraps(plain_init)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        plain_init(self, *arguments, **options)
        complete(self)

    original.__init__ = init


def complete(callbacks: Any) -> None:
    """Puts a StopTogetherCallback at the end of the list, if it has a broadcast or one elsewhere.

    Args:
        callbacks: A `keras.callbacks.CallbackList`.
    """
    from tfddl.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
    from tfddl.keras.callbacks.stop import StopTogetherCallback

    found = [callback for callback in callbacks.callbacks if isinstance(callback, StopTogetherCallback)]
    if not found:
        if not any(isinstance(one, BroadcastGlobalVariablesCallback) for one in callbacks.callbacks):
            return
        found = [StopTogetherCallback()]
        found[0].set_params(callbacks.params)
        if callbacks.model is not None:
            found[0].set_model(callbacks.model)
    others = [callback for callback in callbacks.callbacks if callback not in found]
    callbacks.callbacks = [*others, found[-1]]
    found[-1].others = others
