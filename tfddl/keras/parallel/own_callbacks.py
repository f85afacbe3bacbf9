"""Finds weights that callbacks of the program have changed differently on some ranks."""

from collections.abc import Sequence
from typing import Any

from tfddl import _compat
from tfddl.keras.consistency import callback_list
from tfddl.keras.consistency.weights_check import differing_weights
from tfddl.ops.exchange import all_numbers
from tfddl.runtime.agreement import first_few
from tfddl.runtime.log import warn_once
from tfddl.runtime.process_sets import global_process_set

_NAME = "DataParallel.own_callbacks"


def compare_weights(model: Any, callbacks: Sequence[Any]) -> None:
    """Warns at the end of `fit` if trained weights differ, where the program has callbacks of its own. All ranks call it.

    Args:
        model: The model.
        callbacks: The callbacks that the program has given to `fit`.
    """
    own = any(map(_is_own, callbacks))
    (anywhere,) = all_numbers(own, name=f"{_NAME}.any")
    if not any(anywhere.values()):
        return
    different = differing_weights(model.trainable_weights, f"{_NAME}.weights", global_process_set)
    if different:
        paths = [_compat.path(weight) for weight, _ in different]
        warn_once(
            "DataParallel: at the end of fit the processes have different weights. If a callback of this program changes "
            "weights, let it do so on all processes, outside of `if hvd.rank() == 0:`, and by equal numbers: by the logs of "
            "on_epoch_end, not those of batches, and by random numbers with a fixed seed. Else an operation on GPUs is not "
            "deterministic: call tf.config.experimental.enable_op_determinism(). "
            f"Received: weights that differ: {first_few(paths)}"
        )


def _is_own(callback: Any) -> bool:
    kind = type(callback)
    is_known = _compat.comes_with_keras(kind) or callback_list.is_ours(kind)
    return not is_known or issubclass(kind, _compat.keras().callbacks.LambdaCallback)
