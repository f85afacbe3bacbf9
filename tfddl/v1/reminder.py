"""Looks at sessions of TF1: warns of ranks that train from different weights, because the graph has no broadcast, and says
how to initialize the sums of `backward_passes_per_step`."""

import functools
from typing import Any

import tensorflow as tf

from tfddl import runtime
from tfddl.ops.variables import has_broadcast_in
from tfddl.runtime import basics
from tfddl.runtime.log import warn
from tfddl.v1.accumulation import SCOPE

v1 = tf.compat.v1
_MARK = "_tfddl_to_be_reminded"


def watch() -> None:
    """Has sessions look at the first run in which the graph that is being built trains."""
    graph: Any = v1.get_default_graph()
    if not (tf.executing_eagerly() or graph.building_function or hasattr(graph, _MARK)):
        _watch_sessions()
        setattr(graph, _MARK, True)


@functools.cache
def _watch_sessions() -> None:
    """Replaces `run` of TensorFlow's sessions: no callback of TensorFlow runs between building a graph and its steps.

    The replacement costs one look at an attribute in sessions that need no reminder.
    """
    base: Any = next(kind for kind in v1.Session.__mro__ if "run" in vars(kind))
    plain_run = base.run

    @functools.wraps(plain_run)
    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        if not getattr(self.graph, _MARK, False):
            return plain_run(self, *arguments, **options)
        before = runtime.request_count()
        try:
            result = plain_run(self, *arguments, **options)
        except (tf.errors.NotFoundError, tf.errors.FailedPreconditionError) as error:
            if SCOPE not in error.message:
                raise
            raise _uninitialized(error) from error
        if runtime.request_count() > before:
            setattr(self.graph, _MARK, False)
            _remind(self.graph)
        return result

    base.run = run


def _uninitialized(error: tf.errors.OpError) -> tf.errors.OpError:
    """The same error, with advice."""
    kind: Any = type(error)
    return kind(
        error.node_def,
        error.op,
        "The session has not initialized the sums of backward_passes_per_step, which are local variables: run "
        f"tf.compat.v1.local_variables_initializer() before the first step. Received: {error.message}",
    )


def _remind(graph: Any) -> None:
    if basics.size() > 1 and not has_broadcast_in(graph):
        warn(
            "A session trains with a DistributedOptimizer, but its graph has no broadcast: the ranks train from different "
            "weights. Give the session hooks=[hvd.BroadcastGlobalVariablesHook(0)], or run "
            "hvd.broadcast_global_variables(0) after the initialization, on all ranks."
        )
