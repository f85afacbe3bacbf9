"""What `fit` needs to be right before ranks depend on each other: distributed, built, no jit that would fail."""

from collections.abc import Iterator
from typing import Any

from tfddl import _compat, runtime
from tfddl.keras.distributed.status import is_distributed
from tfddl.keras.keras2 import addons, optimizer_state
from tfddl.runtime import xla
from tfddl.runtime.log import warn_on_each_host
from tfddl.runtime.process_sets import ProcessSet, global_process_set


def turn_off_jit(model: Any) -> None:
    """Keeps Keras from compiling the train step with XLA where there are no XLA kernels."""
    if getattr(model, "jit_compile", False) and not xla.xla_built():
        warn_on_each_host(
            f"jit_compile is switched off for this model, for tfddl has no XLA kernels ({xla.why_not()}). "
            "Say model.compile(..., jit_compile=False) to be rid of this line."
        )
        model.jit_compile = False
        model.train_function = None


def optimizers_of(model: Any) -> Iterator[Any]:
    """`model.optimizer` and other optimizers that the model holds, as a GAN's does."""
    return (optimizer for _, optimizer in optimizers_by_place(model))


def optimizers_by_place(model: Any) -> Iterator[tuple[str, Any]]:
    """The same, each with the place where the model has it: `optimizer`, `optimizers[1]`."""
    candidates = [("optimizer", getattr(model, "optimizer", None))]
    for name, value in sorted(vars(model).items(), key=_is_roundabout):
        if isinstance(value, dict):
            candidates += [(f"{name}[{key!r}]", held) for key, held in value.items()]
        elif isinstance(value, (list, tuple)):
            candidates += [(f"{name}[{number}]", held) for number, held in enumerate(value)]
        else:
            candidates.append((name, value))
    seen = set()
    for place, candidate in candidates:
        if candidate is not None and id(candidate) not in seen and _compat.is_keras_optimizer(candidate):
            seen.add(id(candidate))
            yield place, candidate


def _is_roundabout(attribute: tuple[str, Any]) -> tuple[bool, bool]:
    """Keras keeps what a model holds a second time, in dictionaries of its own."""
    name, value = attribute
    return isinstance(value, (dict, list, tuple)), name.startswith("_")


def check_distributed(model: Any, process_set: ProcessSet = global_process_set) -> bool:
    """Checks that the model's gradients will be combined, as far as that can be seen before training.

    Args:
        model: The compiled model.
        process_set: Whose ranks train it.

    Returns:
        Whether it is still to be seen, in the first step: a model with a `train_step` of its own may use a
        DistributedGradientTape.

    Raises:
        ValueError: If `fit` would train each rank on its own.
    """
    stock = _compat.trains_with_stock_step(model)
    used = [model.optimizer] if stock else optimizers_of(model)
    if process_set.size() == 1 or any(map(is_distributed, used)):
        return False
    if not stock:
        return True
    addons.check_not_inside(model.optimizer)
    raise ValueError(
        "The model's optimizer is not distributed, so each rank would train on its own: use "
        "model.compile(optimizer=tfddl.DistributedOptimizer(optimizer), ...), also after load_model. "
        f"Received: optimizer={model.optimizer!r}"
    )


def request_count() -> int:
    """How many collectives this process has asked for so far."""
    return int(runtime.stats()["requests"])


def check_reduced_since(count: int) -> None:
    """Checks that a step asked for a collective.

    Args:
        count: `request_count()` before the step.

    Raises:
        ValueError: If it did not.
    """
    if request_count() == count:
        raise ValueError(
            "The model's train_step combined no gradients in its first step, so each rank would train on its "
            "own: use tfddl.DistributedGradientTape or tfddl.DistributedOptimizer in it."
        )


def build_optimizer(model: Any) -> None:
    """Makes the variables of `model.optimizer`, if the model is built, that are not there yet."""
    optimizer = getattr(model, "optimizer", None)
    if _compat.is_keras_optimizer(optimizer) and model.built and model.trainable_variables:
        _compat.build_optimizer(optimizer, model.trainable_variables)


def all_variables(model: Any) -> list[Any]:
    """The variables of the model and of its optimizers."""
    variables = list(model.variables)
    for optimizer in optimizers_of(model):
        own = (
            optimizer_state.variables(optimizer, model.variables)
            if _compat.is_keras_2()
            else optimizer.variables
        )
        variables.extend(own)
    return variables
