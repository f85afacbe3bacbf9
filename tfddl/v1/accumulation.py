"""backward_passes_per_step in a graph of TF1: one reduction and one update for several passes."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfddl.gradients.gradient_sums import dense, mean_or_sum

v1 = tf.compat.v1
SCOPE = "tfddl_accumulation"
"""The name scope of the sums and the counter."""


class Accumulation:
    """Adds up the gradients of `passes` runs of the graph; the last run reduces the sums and updates.

    The sums and the counter are local variables of the graph, which are neither saved nor broadcast. A
    `MonitoredTrainingSession` initializes them; in a plain session run `tf.compat.v1.local_variables_initializer()`.

    Args:
        passes: The number of runs for each update, 2 or more.
        average: Whether to divide a sum by `passes` before its reduction.
        sparse_as_dense: Whether to convert a `tf.IndexedSlices` to a dense tensor; without it they are refused.
    """

    def __init__(self, passes: int, average: bool, sparse_as_dense: bool) -> None:
        self.passes = passes
        self.average = average
        self._sparse_as_dense = sparse_as_dense
        self._counter: Any = None
        self._sums: list[Any] = []
        self._context: Any = None

    def reduce(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        reduce: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
    ) -> list[Any]:
        """Adds the gradients to the sums.

        Returns:
            The reduced sums in a run that updates; in another run the rank's own sums so far, which are not applied. None
            for a gradient that is None.

        Raises:
            ValueError: The call is in eager mode or in a `tf.function`, or is the second call; or a gradient is a
                `tf.IndexedSlices`.
        """
        self._check_call()
        self._context = _context()
        gradients = [
            None if gradient is None else dense(gradient, self._sparse_as_dense, self._wanted())
            for gradient in gradients
        ]
        present = [index for index, gradient in enumerate(gradients) if gradient is not None]
        with v1.name_scope(SCOPE):
            self._counter = _local_variable("counter", [], tf.int32)
            self._sums = [
                _local_variable(f"sum_{index}", variables[index].shape, gradients[index].dtype)
                for index in present
            ]
        added = [
            total.assign_add(gradients[index], read_value=False)
            for total, index in zip(self._sums, present, strict=True)
        ]
        with tf.control_dependencies([*added, self._counter.assign_add(1, read_value=False)]):
            results = tf.cond(
                self._complete(),
                lambda: self._reduced(reduce, variables, present),
                self._totals,
            )
        everything: list[Any] = [None] * len(gradients)
        for index, result in zip(present, results, strict=True):
            everything[index] = result
        return everything

    def apply(self, update: Callable[[], Any], global_step: Any) -> Any:
        """Makes an operation that updates and clears the sums in the last of the passes.

        In other passes the operation only increments `global_step`, as Horovod does.

        Raises:
            ValueError: `reduce` has not been called, or a cond is around this call and not around `reduce`.
        """
        if self._counter is None:
            raise ValueError(
                "With backward_passes_per_step > 1 the optimizer adds up gradients itself: call its minimize(), or its "
                "compute_gradients() first. Received: apply_gradients() before either was called"
            )
        if _context() != self._context:
            raise ValueError(
                f"{self._wanted()} cannot have a cond around apply_gradients(): a skipped infinity would "
                "stay in the sums. Write DistributedOptimizer(MixedPrecisionLossScaleOptimizer(optimizer), "
                "backward_passes_per_step=...) instead of the loss scale outside. Received: apply_gradients() inside of a "
                "cond, minimize() or compute_gradients() outside"
            )

        def finish() -> tf.Tensor:
            with tf.control_dependencies([update()]):
                cleared = [total.assign(tf.zeros_like(total), read_value=False) for total in self._sums]
                with tf.control_dependencies([*cleared, self._counter.assign(0, read_value=False)]):
                    return tf.constant(True)

        def wait() -> tf.Tensor:
            counted = [] if global_step is None else [global_step.assign_add(1)]
            with tf.control_dependencies(counted):
                return tf.constant(False)

        return tf.cond(self._last, finish, wait).op

    def _complete(self) -> tf.Tensor:
        """Whether this run is the last of its passes. The counter is read once, before its reset."""
        self._last = tf.greater_equal(self._counter.read_value(), self.passes)
        return self._last

    def _reduced(self, reduce: Callable[..., list[Any]], variables: Sequence[Any], present: list[int]) -> Any:
        """The reduced sums. Ranks agree on the slots of the gradients that are not None."""
        totals: list[Any] = [None] * len(variables)
        for index, total in zip(present, self._totals(), strict=True):
            totals[index] = total
        reduced = reduce(totals, variables)
        return [reduced[index] for index in present]

    def _totals(self) -> list[tf.Tensor]:
        return mean_or_sum(self._sums, self.passes, self.average)

    def _check_call(self) -> None:
        wanted = self._wanted()
        if tf.executing_eagerly() or v1.get_default_graph().building_function:
            raise ValueError(
                f"{wanted} works in a graph of TF1 only, not in eager mode or in a tf.function: use an optimizer of Keras "
                "there."
            )
        if self._counter is not None:
            raise ValueError(
                f"{wanted} adds up the gradients of one loss: make an optimizer for each. "
                "Received: a second call of compute_gradients() or minimize()"
            )

    def _wanted(self) -> str:
        return f"backward_passes_per_step={self.passes} of an optimizer of TF1"


def _context() -> tuple[Any, Any]:
    """The graph that is being built, and the cond or loop of TF1 around the call."""
    graph: Any = v1.get_default_graph()
    return graph, graph._get_control_flow_context()


def _local_variable(name: str, shape: Any, dtype: tf.DType) -> Any:
    # get_local_variable would share the variables of two optimizers where the user's variable scope is shared.
    return v1.Variable(
        lambda: tf.zeros(shape, dtype),
        trainable=False,
        collections=[v1.GraphKeys.LOCAL_VARIABLES],
        name=name,
        use_resource=True,
    )
