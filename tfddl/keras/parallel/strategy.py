"""Stands where Keras asks a model for its tf.distribute.Strategy: divides the batches, and runs the steps on the parts."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.keras import metric_states
from tfddl.keras.distributed import loss_weight
from tfddl.keras.parallel.losses import warn_of_added
from tfddl.keras.parallel.part import Part, take, under_way
from tfddl.keras.parallel.seeds import other_streams
from tfddl.runtime import basics
from tfddl.runtime.log import warn_once


class PartStrategy:
    """What `fit` needs of a `tf.distribute.Strategy`, for a process with one replica.

    Args:
        model: The model that trains.
        distribute: Called with the model when a step is traced, since a callback may have given it another optimizer.
        watch: Called with each dataset of global batches; returns the dataset to take. Defaults to the dataset itself.
        reads_ahead: Whether to build the next part of the first dataset during a step. Not where that runs Python of the
            program: its random numbers would come in another order.
    """

    num_replicas_in_sync = 1

    def __init__(
        self,
        model: Any,
        distribute: Callable[[Any], None],
        watch: Callable[[tf.data.Dataset], tf.data.Dataset] = lambda same: same,
        reads_ahead: bool = False,
    ) -> None:
        self._model, self._distribute = model, distribute
        self._watch, self._reads_ahead = watch, reads_ahead

    def __getattr__(self, name: str) -> Any:
        """Everything else as without a strategy: libraries ask whether several workers train, as Keras Tuner does."""
        return getattr(tf.distribute.get_strategy(), name)

    def experimental_distribute_dataset(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """A dataset of this rank's parts."""
        watched = self._watch(dataset)
        # map() spreads a tuple over several arguments, also one with a single element, which Keras takes for `(x,)`.
        is_spread = type(watched.element_spec) is tuple
        # Not map(), which TensorFlow makes parallel: it would read the next batch early, and so a shuffle that others share.
        parts = watched.flat_map(
            lambda *batch: tf.data.Dataset.from_tensors(take(batch if is_spread else batch[0]))
        )
        _compat.build_metrics(self._model, parts.element_spec.data)
        if self._reads_ahead:
            self._reads_ahead = False
            return parts.prefetch(1)
        return parts

    def run(self, step: Callable[[Any], Any], args: tuple[Any, ...] = ()) -> Any:
        """Runs a step of training or evaluation on a part, or on this rank's part of a batch."""
        (data,) = args
        self._distribute(self._model)
        part = data if isinstance(data, Part) else take(data)
        variables = [variable for metric in self._model.metrics for variable in metric.variables]
        before = [tf.convert_to_tensor(variable) for variable in variables]
        with under_way(part), loss_weight.under_way(part.weight), other_streams():
            outputs = step(part.data)
        warn_of_added(self._model)
        _warn_of_metrics(self._model)
        if basics.rank() > 0:
            self._count_once(part, variables, before)
        return outputs

    def scope(self) -> AbstractContextManager[None]:
        """No variable is made in another way."""
        return nullcontext()

    def _count_once(self, part: Part, variables: list[Any], before: list[tf.Tensor]) -> None:
        """Leaves the rows of a batch that all ranks have to the metrics of rank 0."""

        def restore() -> tf.Tensor:
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)
            return tf.constant(True)

        tf.cond(part.is_whole, restore, lambda: tf.constant(False))


def _warn_of_metrics(model: Any) -> None:
    names = metric_states.undeclared(model)
    if names:
        warn_once(
            f"DataParallel: a metric with an update_state of its own is a mean over the processes: set `additive = True` in "
            f"its class if its variables are sums over rows. Received: {', '.join(map(repr, names))}"
        )
