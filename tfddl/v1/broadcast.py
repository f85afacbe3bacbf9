"""Broadcast of the initial weights in a session of TF1."""

from typing import Any

import tensorflow as tf

from tfddl.ops.variables import broadcast_variables
from tfddl.runtime import basics
from tfddl.v1.unreduced import UnreducedTrainingCheck

v1 = tf.compat.v1


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """Makes an operation that assigns the values of `root_rank` to all global variables of the graph.

    Args:
        root_rank: The rank whose values all ranks take.

    Returns:
        The operation. All ranks run it in a session once the variables are initialized. In a graph without global
        variables it does nothing.

    Raises:
        RuntimeError: The call is in eager mode or in a `tf.function`, which have no global variables.
    """
    if tf.executing_eagerly() or v1.get_default_graph().building_function:
        raise RuntimeError(
            "broadcast_global_variables is for the graphs of TF1, which know their variables. Here use "
            "broadcast_variables(model.weights, root_rank)."
        )
    return broadcast_variables(v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives all ranks the global variables of `root_rank` when a session starts.

        with tf.compat.v1.train.MonitoredTrainingSession(
            checkpoint_dir=directory if tfddl.rank() == 0 else None,
            hooks=[tfddl.BroadcastGlobalVariablesHook(0)],
        ) as session:

    The broadcast runs after the initialization and after a checkpoint has been restored, so that all ranks get the
    values of a checkpoint that `root_rank` alone has read.

    The hook warns if the session trains and nothing combines the gradients, as after a forgotten `DistributedOptimizer`.

    Args:
        root_rank: The rank whose values all ranks take.
    """

    def __init__(self, root_rank: int) -> None:
        self._root_rank = root_rank
        self._broadcast: Any = None
        self._check: UnreducedTrainingCheck | None = None

    def begin(self) -> None:
        """Adds the broadcast to the graph, which is frozen after that."""
        graph = v1.get_default_graph()
        if self._broadcast is None or self._broadcast.graph is not graph:
            self._broadcast = broadcast_global_variables(self._root_rank)
            self._check = UnreducedTrainingCheck(graph) if basics.size() > 1 else None

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the broadcast."""
        session.run(self._broadcast)
        if self._check is not None:
            self._check.start(session)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Looks whether the run has trained without collectives."""
        if self._check is not None:
            self._check.after_run(run_context.session)
