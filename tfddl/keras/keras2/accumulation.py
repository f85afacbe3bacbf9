"""`backward_passes_per_step` for optimizers of Keras 2, which do not accumulate by themselves."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.gradients.gradient_sums import dense, mean_or_sum
from tfddl.keras.distributed.settings import Settings

Pairs = Sequence[tuple[Any, Any]]


class Accumulation:
    """Adds up the gradients of several calls of `apply_gradients`; the last call reduces the sums and updates.

    Each set of variables with gradients has a counter of its own: one optimizer may train two networks in turn.

    Every call counts as one of the optimizer's iterations, as in Horovod. The sums and counters are not part of the
    optimizer's state, so that the state loads without tfddl. An elastic state that is restored begins a new accumulation.

    Args:
        settings: The optimizer's.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._counters: dict[Any, Any] = {}
        self._sums: dict[Any, list[Any]] = {}
        _accumulations.add(self)

    def apply(
        self,
        optimizer: Any,
        plain: Callable[[Pairs], Any],
        pairs: Pairs,
        reduce: Callable[[Sequence[Any]], Sequence[Any]],
    ) -> None:
        """Runs one of the calls.

        Args:
            optimizer: The optimizer, for its `iterations`.
            plain: Keras' `apply_gradients` of the optimizer.
            pairs: Gradients, none of them None, and their variables.
            reduce: Reduces the sums; returns them as they are if the gradients are reduced already.

        Raises:
            ValueError: For a `tf.IndexedSlices`, unless `sparse_as_dense`.
        """
        settings = self._settings
        passes = settings.backward_passes_per_step
        wanted = f"backward_passes_per_step={passes}"
        grads = [dense(grad, settings.options.sparse_as_dense, wanted) for grad, _ in pairs]
        variables = [variable for _, variable in pairs]
        with tf.init_scope():
            _compat.build_optimizer(optimizer, variables)
            counter, sums = self._state(variables)
        for total, grad in zip(sums, grads, strict=True):
            total.assign_add(grad)
        counter.assign_add(1)

        def finish() -> tf.Tensor:
            totals = reduce(mean_or_sum(sums, passes, settings.average_aggregated_gradients))
            plain(list(zip(totals, variables, strict=True)))
            _clear((*sums, counter))
            return tf.constant(True)

        def wait() -> tf.Tensor:
            optimizer.iterations.assign_add(1)
            return tf.constant(False)

        tf.cond(counter >= passes, finish, wait)

    def passes_done(self) -> int:
        """How many calls the set of variables with the most has added up since its last update."""
        return max((int(counter) for counter in self._counters.values()), default=0)

    def drop(self, references: set[Any]) -> None:
        """Begins anew, without the sums, for each set of variables with one of these references."""
        for key, counter in self._counters.items():
            if not references.isdisjoint(key):
                _clear((*self._sums[key], counter))

    def _state(self, variables: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Returns the counter of these variables' calls, and the sums of their gradients."""
        key = tuple(variable.ref() for variable in variables)
        if key not in self._sums:
            self._counters[key] = tf.Variable(0, trainable=False, name="tfddl_passes")
            self._sums[key] = [
                tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False, name="tfddl_sum")
                for variable in variables
            ]
        return self._counters[key], self._sums[key]


_accumulations: weakref.WeakSet[Accumulation] = weakref.WeakSet()


def drop_sums(variables: Iterable[Any]) -> None:
    """Drops the gradients that optimizers have added up for some of these variables, outside of their own state."""
    if _accumulations:
        references = {_compat.tf_variable(variable).ref() for variable in variables}
        for accumulation in _accumulations:
            accumulation.drop(references)


def _clear(variables: Sequence[Any]) -> None:
    for variable in variables:
        variable.assign(tf.zeros_like(variable))
