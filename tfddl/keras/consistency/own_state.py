"""The state of optimizers that stays each rank's own when training goes on, in a second `fit`."""

from collections.abc import Callable
from typing import Any

from tfddl import _compat
from tfddl.keras.consistency import model_contents
from tfddl.ops.exchange import all_numbers
from tfddl.runtime.agreement import differ
from tfddl.runtime.process_sets import ProcessSet


def own_state(model: Any, keeps: Callable[[Any], bool], name: str, process_set: ProcessSet) -> set[int]:
    """Finds the state that a broadcast would spoil. All ranks call it.

    Local variables keep their state. If all ranks have taken equally many steps, each rank also keeps its sums of gradients
    that have not been applied yet. Else all ranks take the sums of the root.

    Args:
        model: The model.
        keeps: Whether a variable of the model stays each rank's own.
        name: Names the collective.
        process_set: The ranks that train.

    Returns:
        The `variable_id` of each.
    """
    optimizers = list(model_contents.optimizers_of(model))
    (steps,) = all_numbers(sum(map(_compat.steps_taken, optimizers)), name=name, process_set=process_set)
    go_on_together = not differ(steps)
    variables = list(model.variables) if _compat.tells_weights(model) else []
    kept = [each for each in variables if keeps(each) and not _compat.is_seed_state(each)]
    return {
        model_contents.variable_id(variable)
        for optimizer in optimizers
        for variable in model_contents.state_of(optimizer, variables)
        if (go_on_together and model_contents.is_accumulator(variable))
        or _is_state_of(variable, kept, variables)
    }


def _is_state_of(state: Any, kept: list[Any], variables: list[Any]) -> bool:
    """Whether a variable of an optimizer holds the state of one of the variables `kept`, and of no other of the model's.

    Its name tells; the longest path of a variable that fits counts.
    """
    if not any(_fits(state, each) for each in kept):
        return False
    fitting = [each for each in variables if _fits(state, each)]
    longest = max(len(_path(each)) for each in fitting)
    return all(any(each is one for one in kept) for each in fitting if len(_path(each)) == longest)


def _fits(state: Any, variable: Any) -> bool:
    """In Keras 3 `dense_kernel_momentum` fits `dense/kernel`, in Keras 2 `m/dense/kernel` and `dense/kernel/m`."""
    if _compat.is_keras_2():
        return f"/{_path(variable)}/" in f"/{_path(state)}/"
    return bool(state.name.startswith(_path(variable).replace("/", "_") + "_"))


def _path(variable: Any) -> str:
    return _compat.path(variable).partition(":")[0]
