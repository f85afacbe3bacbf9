"""Names for collectives that the user does not name.

Ranks agree on collectives by name, so a name must come out equal on all ranks. It is fixed when the graph is built, from
what the program says (function, owner, index), never from a counter of traces: one rank may trace more often.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import tensorflow as tf

_CONTROL_FLOW = ("CondBranchFuncGraph", "WhileCondFuncGraph", "WhileBodyFuncGraph")
_TRACE_NUMBER = re.compile(r"^__(?:inference|forward|backward)_(.*?)_\d+$")

_owners: Counter[str] = Counter()


def reset() -> None:
    """Starts to count owners anew, as `init()` does."""
    _owners.clear()


def owner_index(kind: str) -> int:
    """How many owners of this kind this process has had before: program order, equal on all ranks."""
    _owners[kind] += 1
    return _owners[kind] - 1


def unique(base: str) -> str:
    """A name for one place in the program that the user did not name.

    In a tf.function it is `<function>/<base>`, the second one in the same function `<function>/<base>.1`, and so on. In
    eager mode, where calls come one after another, it is `base` itself.
    """
    graph = _enclosing_function()
    return base if graph is None else numbered(f"{_function_name(graph)}/{base}")


def numbered(name: str) -> str:
    """The name itself; the second time that a tf.function uses it `<name>.1`, and so on: those are two collectives."""
    graph = _enclosing_function()
    if graph is None:
        return name
    counts: Counter[str] | None = getattr(graph, "_tfddl_names", None)
    if counts is None:
        counts = graph._tfddl_names = Counter()
    index = counts[name]
    counts[name] += 1
    return f"{name}.{index}" if index else name


def _enclosing_function() -> Any | None:
    """The graph of the innermost tf.function (or TF1 graph); the graphs of its conds and loops are part of it."""
    if tf.executing_eagerly():
        return None
    graph: Any = tf.compat.v1.get_default_graph()
    while type(graph).__name__ in _CONTROL_FLOW and graph.outer_graph is not None:
        graph = graph.outer_graph
    return graph


def _function_name(graph: Any) -> str:
    name = getattr(graph, "name", None) or "graph"
    match = _TRACE_NUMBER.match(name)
    return match.group(1) if match else name
