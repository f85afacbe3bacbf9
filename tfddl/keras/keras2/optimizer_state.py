"""The state of Keras 2's legacy optimizers and of the optimizers inside them, in one order on all ranks."""

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat


def nested(optimizer: Any) -> Iterator[Any]:
    """An optimizer of Keras 2 and all inside of it: loss scaled, members, wrapped as by Lookahead."""
    yield optimizer
    if _compat.is_loss_scale_optimizer(optimizer):
        inside = [optimizer.inner_optimizer]
    elif _compat.is_addons_multi_optimizer(optimizer):
        inside = [spec["optimizer"] for spec in optimizer.optimizer_specs]
    elif _compat.is_legacy_optimizer(optimizer):
        wrapped = vars(optimizer).get("_optimizer")
        inside = [wrapped] if _compat.is_keras_optimizer(wrapped) else []
    else:
        inside = []
    for each in inside:
        yield from nested(each)


def variables(optimizer: Any, model_variables: Sequence[Any]) -> list[Any]:
    """The state of an optimizer of Keras 2, with that of those inside.

    Legacy optimizers list their slots as they were made, which a restored file does in an order of its own.

    Args:
        optimizer: An optimizer of either kind.
        model_variables: Those of the model, whose order the slots take.
    """
    found: list[Any] = []
    for each in nested(optimizer):
        if _compat.is_loss_scale_optimizer(each):
            state = getattr(each, "_loss_scale", None)  # which it does not list
            found += [] if state is None else _only_variables(vars(state).values())
        elif _compat.is_legacy_optimizer(each):
            found += _legacy(each, model_variables)
        else:  # which does not list its learning rate, as Keras 3 does
            found += [*each.variables, *_only_variables([getattr(each, "_learning_rate", None)])]
    return found


def _legacy(optimizer: Any, model_variables: Sequence[Any]) -> list[Any]:
    hypers = [value for _, value in sorted(optimizer._hyper.items())]
    slots = [
        slot
        for variable in model_variables
        for _, slot in sorted(optimizer._slots.get(_slot_key(variable), {}).items())
    ]
    # Not `iterations`, which would make one in a wrapped optimizer.
    own = [optimizer._iterations, *hypers, *slots]
    return [*_only_variables(own), *optimizer._weights]


def _slot_key(variable: Any) -> Any:
    return variable._shared_name if getattr(variable, "_in_graph_mode", False) else variable._unique_id


def _only_variables(values: Any) -> list[Any]:
    return [value for value in values if isinstance(value, tf.Variable)]
