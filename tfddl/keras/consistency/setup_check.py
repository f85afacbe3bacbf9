"""Checks that all ranks train the same layers with the same optimizer and the same callbacks.

A different momentum or a different frozen layer on one rank would silently change its weights: gradients meet by shape and
slot. A callback that one rank lacks would leave the others waiting in it.
"""

import math
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfddl import _compat
from tfddl.keras.consistency import model_contents
from tfddl.keras.consistency.callback_list import ours_among
from tfddl.keras.consistency.tuner_hint import tuner_hint
from tfddl.keras.distributed.status import all_settings
from tfddl.ops.compression import name_of
from tfddl.ops.constants import NAMES
from tfddl.ops.exchange import all_numbers, check_same
from tfddl.runtime.agreement import by_rank
from tfddl.runtime.log import warn
from tfddl.runtime.process_sets import ProcessSet

_RATE = "learning_rate"
_NAMES = ("name", "weights")  # Keras counts in them what this rank has made so far


def check_optimizer(model: Any, name: str, process_set: ProcessSet) -> None:
    """Compares options of `DistributedOptimizer`, hyperparameters, and the model's name without Keras' counter.

    Two models of one shape that the ranks train in different order would exchange their gradients. All ranks call it.

    Args:
        model: The compiled model.
        name: Names the collective.
        process_set: The ranks that train.

    Raises:
        ValueError: On every rank, if they differ.
    """
    optimizer = getattr(model, "optimizer", None)
    lines = [] if optimizer is None else [*_options(optimizer), *_hyperparameters(optimizer)]
    check_same(
        [f"model={re.sub(r'_?[0-9]+', '', model.name)}", *lines],
        "The ranks have different optimizers or models: train the same model at a time on all ranks, with the same options "
        "and hyperparameters." + tuner_hint(),
        name,
        process_set,
    )


def check_roles(model: Any, name: str, process_set: ProcessSet, keeps: Callable[[Any], bool]) -> None:
    """Compares which weights are trained, which are local, and which gradients travel together. All ranks call it.

    Ranks may have different numbers of local weights, in the same places among the others.

    Args:
        model: The compiled model, built.
        name: Names the collective.
        process_set: The ranks that train.
        keeps: Whether a weight is this rank's own for another reason than the optimizer's.

    Raises:
        ValueError: On every rank, if they differ.
    """
    weights = list(model.weights)
    trained = {_compat.reference(weight) for weight in model.trainable_weights}
    local = local_slots(model, weights)
    group = _groups(model)
    lines: list[str] = []
    number = 0  # among the weights that are not local
    for slot, weight in enumerate(weights):
        reference = _compat.reference(weight)
        if slot in local or keeps(weight):
            line = f"local weights stand before weight {number} of the others"
            lines += [] if line in lines[-1:] else [line]
            continue
        role = "trained" if reference in trained else "frozen"
        travels = f" in group {group[reference]}" if reference in group else ""
        lines.append(f"weight {number} of shape {tuple(weight.shape)} {role}{travels}")
        number += 1
    check_same(
        lines,
        "The ranks have different roles of weights: freeze the same layers, and give the optimizer the same local layers "
        "and groups.",
        name,
        process_set,
    )


def check_callbacks(callbacks: list[Any], name: str, process_set: ProcessSet) -> None:
    """Compares which callbacks of tfddl the ranks have, and their order. All ranks call it.

    Args:
        callbacks: The callbacks of `fit`.
        name: Names the collective.
        process_set: The ranks that train.

    Raises:
        ValueError: On every rank, if they differ.
    """
    check_same(
        [f"{number}. {kind}" for number, kind in enumerate(ours_among(callbacks), 1)],
        "The ranks have different callbacks of tfddl: give all ranks the same callbacks, in one order.",
        name,
        process_set,
    )


def warn_of_rates(model: Any, root_rank: int, name: str, process_set: ProcessSet) -> None:
    """Warns if the broadcast of the optimizer's variables will change the learning rate of a rank. All ranks call it.

    A rate that BackupAndRestore has restored is none that the program has set: nobody compares it.

    Args:
        model: The compiled model, with the variables of its optimizer.
        root_rank: The rank whose values all will have.
        name: Names the collective.
        process_set: The ranks that train.
    """
    optimizer = getattr(model, "optimizer", None)
    restored = optimizer is None or _compat.resumed_epoch(model) is not None
    rate = None if restored else _compat.settable_learning_rate(optimizer)
    (rates,) = all_numbers(math.nan if rate is None else rate, name=name, process_set=process_set)
    root, known = rates[root_rank], {rank: each for rank, each in rates.items() if not math.isnan(each)}
    changed = {rank: each for rank, each in known.items() if each != root}
    if changed and not math.isnan(root):
        warn(
            "BroadcastGlobalVariablesCallback gives all ranks the learning rate of its root, and some have another one: "
            "set one rate on all ranks. "
            f"Received: root_rank={root_rank} with {root:.7g}; {by_rank(changed)}",
            process_set,
        )


def local_slots(model: Any, weights: Sequence[Any]) -> set[int]:
    """The slots of the weights whose gradients the model's optimizers leave to each rank."""
    return local_slots_of(model_contents.optimizers_of(model), weights)


def local_slots_of(optimizers: Iterable[Any], weights: Sequence[Any]) -> set[int]:
    """The slots of the weights whose gradients the optimizers leave to each rank."""
    found = (settings for optimizer in optimizers for settings in all_settings(optimizer))
    return set().union(*(settings.local.among(weights) for settings in found))


def local_references(model: Any, keeps: Callable[[Any], bool]) -> set[Any]:
    """The `_compat.reference` of the model's weights that are this rank's own: the optimizers', or what `keeps` says."""
    found = model.weights if _compat.tells_weights(model) else ()
    weights = list(filter(_compat.is_variable, found))  # in Keras 2 tables of lookups are among them
    slots = local_slots(model, weights)
    return {
        _compat.reference(weight) for slot, weight in enumerate(weights) if slot in slots or keeps(weight)
    }


def has_local(model: Any) -> bool:
    """Whether an optimizer of the model has local layers or variables, also if they are not built yet."""
    optimizers = model_contents.optimizers_of(model)
    return any(settings.local.has_any() for each in optimizers for settings in all_settings(each))


def _groups(model: Any) -> dict[Any, int]:
    found = [settings.options.groups for settings in all_settings(getattr(model, "optimizer", None))]
    listed = [group for groups in found if isinstance(groups, tuple) for group in groups]
    return {reference: number for number, group in enumerate(listed) for reference in group}


def _options(optimizer: Any) -> Iterator[str]:
    found = all_settings(optimizer)
    for number, settings in enumerate(found):
        member = f"members[{number}]." if len(found) > 1 else ""
        chosen = settings.chosen()
        del chosen["process_set"]  # its ranks are the ones that compare
        if isinstance(chosen["groups"], tuple):
            chosen["groups"] = "lists of variables"  # `check_roles` compares them
        chosen.update(op=NAMES[chosen["op"]], compression=name_of(chosen["compression"]))
        yield from (f"{member}{option}={value}" for option, value in chosen.items())


def _hyperparameters(optimizer: Any) -> Iterator[str]:
    tf1 = _compat.tf1_optimizer(optimizer)
    yield f"optimizer={type(tf1 or _compat.innermost(optimizer)).__name__}"
    config = {} if tf1 else _config(optimizer)  # a TF1 optimizer does not list its own
    yield from _numbers(config, "")


def _config(value: Any) -> Mapping[str, Any]:
    """The configuration of an optimizer; empty without one.

    Keras asks for a configuration only when it saves. So a class of the user's own may have none.
    """
    try:
        config: Mapping[str, Any] = value.get_config()
        return config
    except Exception:  # whatever code of the user's own raises
        return {}


def _numbers(config: Mapping[str, Any], prefix: str, rates: bool = False) -> Iterator[str]:
    """The numbers and strings of a configuration.

    With `rates` a plain learning rate is among them. That of the model's optimizer is not: the broadcast makes it equal,
    and StopTogetherCallback compares it later.
    """
    for key, value in config.items():
        if key not in _NAMES and (rates or isinstance(value, Mapping) or key != _RATE):
            yield from _value(value, f"{prefix}{key}", rates)


def _value(value: Any, name: str, rates: bool) -> Iterator[str]:
    if callable(getattr(value, "get_config", None)):  # a member of a MultiOptimizer of TensorFlow Addons
        value = {"class_name": type(_compat.innermost(value)).__name__, **_config(value)}
    if isinstance(value, Mapping):
        yield from _numbers(value, f"{name}.", rates)
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _value(each, f"{name}[{index}]", True)
    elif value is None or isinstance(value, (str, numbers.Number)):
        yield f"{name}={_text(value)}"


def _text(value: Any) -> str:
    """A number with the digits of float32, which it has after a rank has loaded it from a file."""
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return str(np.float32(value)).removesuffix(".0")
    return str(value)
