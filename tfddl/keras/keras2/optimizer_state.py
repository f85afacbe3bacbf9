"""The state of Keras 2's optimizers and of the optimizers inside them, in the same order on all ranks."""

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat


def nested(optimizer: Any) -> Iterator[Any]:
    """Yields an optimizer of Keras 2 and those inside: in a LossScaleOptimizer, MultiOptimizer or Lookahead."""
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
    """Returns the state of an optimizer of Keras 2 and of the optimizers inside it.

    Legacy optimizers list their slots in the order of creation, which is another one after loading a file.

    Args:
        optimizer: An optimizer of either kind.
        model_variables: The model's variables. Slots come in their order.
    """
    found: list[Any] = []
    for each in nested(optimizer):
        if _compat.is_loss_scale_optimizer(each):
            state = getattr(each, "_loss_scale", None)  # not in its list of variables
            found += [] if state is None else _only_variables(vars(state).values())
        elif _compat.is_legacy_optimizer(each):
            found += _legacy(each, model_variables)
        else:  # its list of variables lacks the learning rate
            found += [*each.variables, *_only_variables([getattr(each, "_learning_rate", None)])]
    return found


def _legacy(optimizer: Any, model_variables: Sequence[Any]) -> list[Any]:
    hypers = [value for _, value in sorted(optimizer._hyper.items())]
    slots = [
        slot
        for variable in model_variables
        for _, slot in sorted(optimizer._slots.get(_slot_key(variable), {}).items())
    ]
    # Not the property `iterations`: it would make the variable in a wrapped optimizer.
    own = [optimizer._iterations, *hypers, *slots]
    return [*_only_variables(own), *optimizer._weights]


def _slot_key(variable: Any) -> Any:
    return variable._shared_name if getattr(variable, "_in_graph_mode", False) else variable._unique_id


def _only_variables(values: Any) -> list[Any]:
    return [value for value in values if isinstance(value, tf.Variable)]
