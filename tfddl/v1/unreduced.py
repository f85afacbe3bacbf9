"""Warns of a session of TF1 that trains without combining any gradient, because nothing is distributed."""

import re
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _graphs, runtime
from tfddl.gradients import reduced_marks
from tfddl.gradients.checksum import checksum
from tfddl.runtime.agreement import first_few
from tfddl.runtime.log import warn

v1 = tf.compat.v1
_UPDATE = re.compile("(Resource)?(Sparse)?Apply|(Resource)?Scatter(Add|Sub)")
_COLLECTIVE = re.compile("Tfddl(Allreduce|Reducescatter|Allgather|Alltoall)")


class UnreducedTrainingCheck:
    """Looks whether trainable variables change although this rank has called no collective since the broadcast.

    The check is local: it adds nothing to the graph, and no rank waits for another. It reads variables only if the graph
    has updates by optimizers and no collective but broadcasts, as after a forgotten `DistributedOptimizer`.

    Args:
        graph: The graph of the session, complete.

    Attributes:
        needed: Whether there is still something to look for.
    """

    def __init__(self, graph: Any) -> None:
        types = _graphs.op_types(graph)
        self.needed = any(map(_UPDATE.match, types)) and not any(map(_COLLECTIVE.match, types))
        shared = set(map(id, graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES)))
        trainable = graph.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES)
        self._variables = [
            each for each in trainable if id(each) in shared and not reduced_marks.is_own(each)
        ]
        self._runs = 0

    def start(self, session: Any) -> None:
        """Remembers the variables as the broadcast has left them."""
        if self.needed:
            self._requests, self._start = runtime.request_count(), self._checksums(session)

    def after_run(self, session: Any) -> None:
        """Compares the variables with the start, after the first, second, fourth, eighth... run."""
        self._runs += 1
        if not self.needed or self._runs & (self._runs - 1):
            return
        if runtime.request_count() != self._requests:  # a collective outside of the graph
            self.needed = False
            return
        now = self._checksums(session)
        changed = [each.name for each, a, b in zip(self._variables, self._start, now, strict=True) if a != b]
        if changed:
            self.needed = False
            warn(
                "A session trains variables whose gradients are not combined, so the weights of the ranks will differ: use "
                "tfddl.DistributedOptimizer(optimizer) for each optimizer. Variables that may differ by rank belong in "
                "tf.compat.v1.GraphKeys.LOCAL_VARIABLES, not in GLOBAL_VARIABLES. Received: a graph without reductions "
                f"that changes {first_few(changed)}"
            )

    def _checksums(self, session: Any) -> list[int]:
        return [checksum(np.asarray(values)) for values in session.run(self._variables)]
