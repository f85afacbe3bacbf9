"""Files of models with a sharded optimizer: all ranks collect the state, and the first one writes it."""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tfddl.keras.consistency import model_contents
from tfddl.keras.consistency.first_rank import first
from tfddl.keras.distributed import patches
from tfddl.keras.distributed.settings import settings_of
from tfddl.runtime.process_sets import rank_in

_NAME = "ShardedOptimizer.file"


def watch() -> None:
    """From now on Keras writes models with sharded optimizers by one rank."""
    patches.write_together(by_first_rank)


def by_first_rank(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function that saves a model: all ranks call it, the first writes, and the others wait until the file is complete.

    Args:
        plain: The function, whose first arguments are the model and the path of the file.
    """

    @functools.wraps(plain)
    def write(model: Any, filepath: Any, *arguments: Any, **options: Any) -> Any:
        optimizers = model_contents.sharded_optimizers(model)
        if not optimizers:
            return plain(model, filepath, *arguments, **options)
        if str(filepath).endswith(".h5") and not str(filepath).endswith(".weights.h5"):
            raise ValueError(
                "A model with a ShardedOptimizer is saved in the format of Keras 3: use a path that ends in .keras. "
                f"Received: {filepath}"
            )
        process_set = settings_of(optimizers[0]).options.process_set
        writes = rank_in(process_set) == 0
        collected = []
        for optimizer in optimizers:
            values = [value for value in optimizer.whole_values() if writes] if optimizer.built else []
            collected.append(values)
        with ExitStack() as stack:
            for optimizer, values in zip(optimizers, collected, strict=True):
                stack.enter_context(optimizer.collected(values))
            return first(writes, lambda: plain(model, filepath, *arguments, **options), _NAME, process_set)

    return write
