"""Steps of a model that are a `tf.function` of their own, inside of the one that Keras makes of a step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tfddl import _compat


@contextmanager
def traced_anew(model: Any) -> Iterator[None]:
    """Traces a `train_step` or `test_step` under `@tf.function` again in each function of Keras'.

    A trace holds the number of rows, a tensor of the function around it, and the rules of a part of a batch or of a whole
    one.
    """
    steps = {name: getattr(model, name) for name in ("train_step", "test_step")}
    anew = {name: _anew(step) for name, step in steps.items() if _compat.fresh_function(step) is not step}
    before = {name: step for name, step in vars(model).items() if name in anew}
    vars(model).update(anew)
    try:
        yield
    finally:
        for name in anew:
            del vars(model)[name]
        vars(model).update(before)


def _anew(step: Any) -> Callable[..., Any]:
    return lambda *arguments, **options: _compat.fresh_function(step)(*arguments, **options)
