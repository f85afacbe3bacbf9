"""Files of models with a sharded optimizer: all ranks collect the state, and the first one writes it."""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tfddl.keras.consistency import model_contents
from tfddl.keras.consistency.first_rank import first
from tfddl.keras.distributed import patches
from tfddl.keras.distributed.settings import settings_of
from tfddl.keras.distributed.status import all_settings
from tfddl.runtime import basics
from tfddl.runtime.log import warn_on_this_rank
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
        if not optimizers and _is_outside(model):
            warn_on_this_rank(
                f"Rank {basics.rank()} does not write {filepath}: it is outside the process set of the model's "
                "ShardedOptimizer, whose first rank writes. Call model.save on the ranks of the set alone."
            )
            return None
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


def _is_outside(model: Any) -> bool:
    """Whether the model's optimizer is divided among other ranks."""
    found = [each for optimizer in model_contents.optimizers_of(model) for each in all_settings(optimizer)]
    return any(each.sharded and not each.options.process_set.included() for each in found)
