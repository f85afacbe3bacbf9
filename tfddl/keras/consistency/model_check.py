"""Checks that `fit` will combine the model's gradients, and turns off a compilation by XLA that would fail."""

from typing import Any

from tfddl import _compat, runtime
from tfddl.keras.consistency import model_contents
from tfddl.keras.distributed.status import all_settings, is_distributed
from tfddl.keras.keras2 import addons
from tfddl.runtime import xla
from tfddl.runtime.log import warn_on_each_host
from tfddl.runtime.process_sets import ProcessSet, members


def turn_off_jit(model: Any) -> None:
    """Keeps Keras from compiling the train step with XLA if tfddl has no XLA kernels."""
    if getattr(model, "jit_compile", False) and not xla.xla_built():
        warn_on_each_host(
            f"jit_compile is switched off for this model, because tfddl has no XLA kernels ({xla.why_not()}). "
            "Run tfddl build, which says why. To silence this warning, use model.compile(..., jit_compile=False)."
        )
        model.jit_compile = False
        model.train_function = None


def check_distributed(model: Any, process_set: ProcessSet) -> bool:
    """Checks before training, as far as possible, that the ranks combine the model's gradients.

    Args:
        model: The compiled model.
        process_set: The ranks that train it.

    Returns:
        Whether the first step has to be checked by `check_reduced_since`: a model with a `train_step` of its own may use
        a DistributedGradientTape.

    Raises:
        ValueError: `fit` would train each rank on its own.
    """
    stock = _compat.trains_with_stock_step(model)
    used = [model.optimizer] if stock else model_contents.optimizers_of(model)
    if stock:
        _check_ranks(model.optimizer, process_set)
    if process_set.size() == 1 or any(map(is_distributed, used)):
        return False
    if not stock:
        return True
    addons.check_not_inside(model.optimizer)
    if model_contents.has_unknown_members(model.optimizer):
        raise ValueError(
            "A MultiOptimizer asks its function for optimizers when it is built, so it is not known whether they are "
            "distributed: call model.build(input_shape) before fit, or give the MultiOptimizer to tfddl's "
            "DistributedOptimizer. "
            f"Received: optimizer={model.optimizer!r}, of a model that is not built"
        )
    raise ValueError(
        "The model's optimizer is not distributed, so each rank would train on its own: use "
        "model.compile(optimizer=hvd.DistributedOptimizer(optimizer), ...), and for a saved model hvd.load_model(path) "
        "instead of keras.models.load_model(path). "
        f"Received: optimizer={model.optimizer!r}"
    )


def _check_ranks(optimizer: Any, process_set: ProcessSet) -> None:
    """Checks that the optimizer combines the gradients of all ranks of `process_set`.

    Raises:
        ValueError: It does not.
    """
    for settings in all_settings(optimizer):
        mine, trained = (set(members(each)) for each in (process_set, settings.options.process_set))
        if len(mine) > 1 and not mine <= trained:
            raise ValueError(
                "The optimizer does not combine the gradients of all ranks to which the callback broadcasts, so their "
                "weights would diverge: give both the same process_set. "
                f"Received: DistributedOptimizer with ranks {sorted(trained)}, "
                f"BroadcastGlobalVariablesCallback with {sorted(mine)}"
            )


def check_reduced_since(count: int) -> None:
    """Checks that a step has submitted a collective.

    Args:
        count: `runtime.request_count()` before the step.

    Raises:
        ValueError: The step has submitted none.
    """
    if runtime.request_count() == count:
        raise ValueError(
            "The model's train_step combined no gradients in its first step, so each rank would train on its "
            "own: use tfddl.DistributedGradientTape or tfddl.DistributedOptimizer in it."
        )
