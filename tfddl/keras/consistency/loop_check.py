"""Finds a loop of the program's own in which each rank trains on its shard of the data, and combines no gradient."""

import atexit
import functools

from tfddl import runtime
from tfddl.keras.distributed import patches
from tfddl.runtime import basics
from tfddl.runtime.job import process
from tfddl.runtime.log import warn

_requests: int | None = None  # collectives before an optimizer has applied gradients for the first time


@functools.cache
def watch() -> None:
    """The program shards data over several ranks: a line at the end of the job says if it combines no gradient."""
    patches.watch_optimizers(_note)
    atexit.register(_warn_of_no_collective)


def forget() -> None:
    """`fit` has told the program already."""
    global _requests
    _requests = -1


def _note() -> None:
    global _requests
    if _requests is None and basics.is_initialized():
        _requests = runtime.request_count()


def _warn_of_no_collective() -> None:
    """A program that averages gradients or weights by hand asks for a collective in or after its first step."""
    if not basics.is_initialized() or basics.size() == 1 or process.exit_code != 0:
        return
    if _requests == runtime.request_count() and not runtime.stats()["bytes_reduced"]:
        warn(
            f"This job of {basics.size()} ranks has combined no gradient, though hvd.data.shard has dealt the data: each "
            "rank has trained a model of its own. Wrap the tape: tape = hvd.DistributedGradientTape(tape). Or the "
            "optimizer: optimizer = hvd.DistributedOptimizer(optimizer)."
        )
