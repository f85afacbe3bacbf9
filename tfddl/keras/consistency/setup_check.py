"""All ranks train the same layers with the same optimizer and callbacks; else an error that names the difference.

A momentum of another size on one rank changes the weights there without a word, and so does another layer that is frozen:
gradients meet by shape and place. A callback that one rank lacks leaves the others waiting in it.
"""

import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfddl import _compat
from tfddl.keras.consistency import model_check
from tfddl.keras.distributed.adoption import is_adopted
from tfddl.keras.distributed.settings import Settings, settings_of
from tfddl.keras.exchange import differing_lists
from tfddl.ops.constants import NAMES
from tfddl.runtime.process_sets import ProcessSet, global_process_set

# The broadcast makes an optimizer's number equal, and StopTogetherCallback looks at it; that of one of several is compared.
_RATE = "learning_rate"
_COUNTED = ("name", "weights")  # names, which count what a rank has made


def check_optimizer(model: Any, name: str, process_set: ProcessSet = global_process_set) -> None:
    """Compares options of `DistributedOptimizer`, hyperparameters, and the model's name less what counts models.

    Two models of one shape that the ranks train in another order would give each other their gradients.

    Args:
        model: The compiled model.
        name: Names the collective.
        process_set: Whose ranks take part; "every rank" means those.

    Raises:
        ValueError: On every rank, if they differ.
    """
    optimizer = getattr(model, "optimizer", None)
    lines = [] if optimizer is None else [*_options(optimizer), *_hyperparameters(optimizer)]
    what = "optimizers or models: train the same model at a time on all, with the same options and hyperparameters"
    _check_same([f"model={re.sub(r'_?[0-9]+', '', model.name)}", *lines], what, name, process_set)


def check_roles(model: Any, name: str, process_set: ProcessSet = global_process_set) -> None:
    """Compares which weights are trained, which are local, and which gradients travel together.

    Args:
        model: The compiled model, built.
        name: Names the collective.
        process_set: Whose ranks take part; "every rank" means those.

    Raises:
        ValueError: On every rank, if they differ.
    """
    weights = list(model.weights)
    trained = {_compat.reference(weight) for weight in model.trainable_weights}
    local = local_among(model, weights)
    group = _groups(model)
    lines = []
    for place, weight in enumerate(weights):
        reference = _compat.reference(weight)
        role = "local" if place in local else "trained" if reference in trained else "frozen"
        travels = f" in group {group[reference]}" if reference in group else ""
        lines.append(f"weight {place} of shape {tuple(weight.shape)} {role}{travels}")
    what = "roles of weights: freeze the same layers, and give the optimizer the same local layers and groups"
    _check_same(lines, what, name, process_set)


def local_among(model: Any, weights: Sequence[Any]) -> set[int]:
    """Which weights the model's optimizers leave to each rank, by their place."""
    found = map(_settings, model_check.optimizers_of(model))
    return set().union(*(settings.local.among(weights) for settings in found if settings is not None))


def _groups(model: Any) -> dict[Any, int]:
    settings = _settings(getattr(model, "optimizer", None))
    groups = None if settings is None else settings.options.groups
    listed = groups if isinstance(groups, tuple) else ()
    return {reference: number for number, group in enumerate(listed) for reference in group}


def check_callbacks(
    callbacks: Sequence[Any], name: str, process_set: ProcessSet = global_process_set
) -> None:
    """Compares which callbacks of tfddl the ranks have, in their order.

    Args:
        callbacks: Those of `fit`.
        name: Names the collective.
        process_set: Whose ranks take part; "every rank" means those.

    Raises:
        ValueError: On every rank, if they differ.
    """
    ours = [type(each).__name__ for each in callbacks if type(each).__module__.startswith("tfddl.")]
    numbered = [f"{number}. {each}" for number, each in enumerate(ours, 1)]
    _check_same(numbered, "callbacks of tfddl: give all ranks the same, in one order", name, process_set)


def _check_same(lines: list[str], what: str, name: str, process_set: ProcessSet) -> None:
    different = differing_lists(lines, name, process_set)
    if different is None:
        return
    common = set.intersection(*map(set, different.values()))
    received = "; ".join(
        f"rank {rank}: {', '.join(line for line in lines if line not in common) or 'none of these'}"
        for rank, lines in different.items()
    )
    raise ValueError(f"The ranks have different {what}. Received: {received}")


def _settings(optimizer: Any) -> Settings | None:
    """How an optimizer combines its gradients; None if it does not, or there is none."""
    adopted = optimizer is not None and is_adopted(_compat.innermost(optimizer))
    return settings_of(optimizer) if adopted else None


def _options(optimizer: Any) -> Iterator[str]:
    settings = _settings(optimizer)
    if settings is not None:
        chosen = settings.chosen()
        del chosen["process_set"]  # whose ranks compare
        if isinstance(chosen["groups"], tuple):
            chosen["groups"] = "lists of variables"  # those are part of the weights' roles
        chosen.update(op=NAMES[chosen["op"]], compression=chosen["compression"].__name__)
        yield from (f"{option}={value}" for option, value in chosen.items())


def _hyperparameters(optimizer: Any) -> Iterator[str]:
    tf1 = _compat.tf1_optimizer(optimizer)
    yield f"optimizer={type(tf1 or _compat.innermost(optimizer)).__name__}"
    yield from _numbers({} if tf1 else optimizer.get_config(), "")  # those of TF1 do not tell theirs


def _numbers(config: Mapping[str, Any], prefix: str, rates: bool = False) -> Iterator[str]:
    for key, value in config.items():
        schedule = key == _RATE and isinstance(value, Mapping)
        if key not in _COUNTED and (rates or schedule or key != _RATE):
            yield from _value(value, f"{prefix}{key}", rates)


def _value(value: Any, name: str, rates: bool) -> Iterator[str]:
    if callable(
        getattr(value, "get_config", None)
    ):  # TensorFlow Addons' MultiOptimizer lists the optimizers themselves
        value = {"class_name": type(_compat.innermost(value)).__name__, **value.get_config()}
    if isinstance(value, Mapping):
        yield from _numbers(value, f"{name}.", rates)
    elif isinstance(value, (list, tuple)):
        for place, each in enumerate(value):
            yield from _value(each, f"{name}[{place}]", True)
    elif value is None or isinstance(value, (str, numbers.Number)):
        yield f"{name}={_text(value)}"


def _text(value: Any) -> str:
    """A number as an optimizer's variable holds it, which it becomes when one rank reads it or loads a file."""
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return str(np.float32(value)).removesuffix(".0")
    return str(value)
