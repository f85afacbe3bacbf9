"""`DataParallel`: an unchanged Keras program trains on all ranks, with the numbers of one process."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tfddl import _compat
from tfddl.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from tfddl.keras.callbacks.metric_average import MetricAverageCallback
from tfddl.keras.callbacks.rank_zero_only import rank_zero_only
from tfddl.keras.consistency import model_contents
from tfddl.keras.distributed import patches
from tfddl.keras.distributed.status import is_distributed
from tfddl.keras.optimizer import DistributedOptimizer
from tfddl.keras.parallel import losses, seeds
from tfddl.keras.parallel.order import OrderCallback
from tfddl.keras.parallel.strategy import PartStrategy
from tfddl.runtime import basics

# These write files; one rank does.
_WRITERS = ("BackupAndRestore", "CSVLogger", "ModelCheckpoint", "RemoteMonitor", "TensorBoard")


def DataParallel(*, seed: int | None = None, synchronize_batch_normalization: bool = True) -> None:
    """Makes `fit` train on all ranks, with the numbers of one process."""
    basics.init()
    seeds.set_seed(seed)
    parallel = _Parallel()
    patches.divide_training(parallel)
    patches.divide_losses(losses.with_global_sums, losses.with_global_masks)


class _Parallel:
    """What the methods of a model do in a job of several ranks."""

    def __init__(self) -> None:
        self._generators: set[int] = set()

    def fit(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """`Model.fit` on this rank's parts of the global batches."""
        signature = inspect.signature(plain)

        @functools.wraps(plain)
        def fit(model: Any, *arguments: Any, **options: Any) -> Any:
            if basics.size() == 1:
                return plain(model, *arguments, **options)
            call = signature.bind(model, *arguments, **options)
            order = OrderCallback()
            call.arguments["callbacks"] = self._callbacks(order, call.arguments.get("callbacks"))
            _quiet(call)
            for optimizer in list(model_contents.optimizers_of(model)):
                if not is_distributed(optimizer):
                    DistributedOptimizer(optimizer)
            if model.built:
                seeds.differ_by_rank(model, self._generators)
            with _divided(model, PartStrategy(model, order.watch)):
                return plain(*call.args, **call.kwargs)

        return fit

    def evaluate(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """`Model.evaluate`: whole on every rank, unless it is the validation of `fit`."""
        return self._whole(plain, "_use_cached_eval_dataset")

    def predict(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """`Model.predict`: whole on every rank."""
        return self._whole(plain, "")

    def _whole(self, plain: Callable[..., Any], cached: str) -> Callable[..., Any]:
        signature = inspect.signature(plain)

        @functools.wraps(plain)
        def call_whole(model: Any, *arguments: Any, **options: Any) -> Any:
            call = signature.bind(model, *arguments, **options)
            _quiet(call)
            if options.get(cached):
                return plain(*call.args, **call.kwargs)
            with _divided(model, None):
                return plain(*call.args, **call.kwargs)

        return call_whole

    def _callbacks(self, order: OrderCallback, given: Any) -> list[Any]:
        listed = [] if given is None else [given] if not isinstance(given, (list, tuple)) else list(given)
        home = _compat.keras().callbacks
        writers = tuple(getattr(home, name) for name in _WRITERS if hasattr(home, name))
        own = [rank_zero_only(each) if isinstance(each, writers) else each for each in listed]
        return [BroadcastGlobalVariablesCallback(0), MetricAverageCallback(), order, *own]


def _quiet(call: inspect.BoundArguments) -> None:
    """Leaves the progress bar to rank 0."""
    if basics.rank() > 0:
        call.arguments["verbose"] = 0


@contextmanager
def _divided(model: Any, strategy: PartStrategy | None) -> Iterator[None]:
    before = model._distribute_strategy
    model._distribute_strategy = strategy
    try:
        yield
    finally:
        model._distribute_strategy = before
