"""The state of optimizers that stays each rank's own when training goes on, in a second `fit`."""

from collections.abc import Callable, Iterator
from typing import Any

from tfddl import _compat
from tfddl.keras.consistency import model_contents
from tfddl.ops.exchange import all_numbers
from tfddl.runtime.process_sets import ProcessSet


def own_state(model: Any, keeps: Callable[[Any], bool], name: str, process_set: ProcessSet) -> set[int]:
    """Finds the state that a broadcast would spoil. All ranks call it.

    It is the state of variables that stay each rank's own, and, if all ranks have taken equally many steps, their sums of
    gradients that have not been applied yet. With different numbers of steps all ranks need the sums of one of them.

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
    go_on_together = len(set(steps.values())) == 1
    return {
        model_contents.variable_id(variable)
        for optimizer in optimizers
        for variable, of in _state(optimizer, model)
        if (go_on_together and model_contents.is_accumulator(variable)) or (of and all(map(keeps, of)))
    }


def _state(optimizer: Any, model: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yields the variables of an optimizer, each with the variables of the model of which it holds the state.

    Keras 3 begins its name with the path of that variable. Variables of Keras 2 are yielded without.
    """
    paths = (
        []
        if _compat.is_keras_2()
        else [(_compat.path(each).replace("/", "_"), each) for each in model.variables]
    )
    for variable in model_contents.state_of(optimizer, model.variables):
        found = [path for path, _ in paths if variable.name.startswith(f"{path}_")]
        yield variable, [each for path, each in paths if found and path == max(found, key=len)]
