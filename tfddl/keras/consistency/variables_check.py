"""Checks that all ranks have the same variables before a broadcast, which sends them in order."""

import re
from collections.abc import Sequence
from typing import Any

from tfddl import _compat
from tfddl.keras.consistency.tuner_hint import tuner_hint
from tfddl.ops.exchange import check_same
from tfddl.runtime.process_sets import ProcessSet


def check_variables(
    variables: Sequence[Any], model_and_optimizers: Sequence[Any], name: str, process_set: ProcessSet
) -> None:
    """Compares number, dtypes, shapes and names of variables. All ranks call it.

    Args:
        variables: The variables to be sent.
        model_and_optimizers: All variables of the model and its optimizers, which give slots their names.
        name: Names the collective.
        process_set: The ranks that take part.

    Raises:
        ValueError: On every rank, if the variables differ.
    """
    owners = {_compat.path(each).replace("/", "_"): _own_name(each) for each in model_and_optimizers}
    described = [f"{index}. {_describe(variable, owners)}" for index, variable in enumerate(variables)]
    check_same(
        [f"{len(variables)} variables", *described],
        "The ranks have different variables: make the same model and optimizer on all, built or loaded on all."
        + tuner_hint(),
        name,
        process_set,
    )


def _own_name(variable: Any) -> str:
    return _compat.path(variable).rsplit("/", 1)[-1]


def _describe(variable: Any, owners: dict[str, str]) -> str:
    """Dtype, shape and name of a variable.

    The name is without Keras' counters (`dense_3` becomes `dense`). In the name of a slot the path of the trained
    variable, which is another one in a loaded model, becomes that variable's own name.
    """
    dtype = variable.dtype if isinstance(variable.dtype, str) else variable.dtype.name
    name = _own_name(variable)
    for end in (index for index, letter in enumerate(name) if letter == "_"):
        if name[:end] in owners:
            name = owners[name[:end]] + name[end:]
            break
    return f"{dtype}{tuple(variable.shape)} {re.sub(r'_[0-9]+', '', name)}"
