"""Names for collectives that the user does not name.

Ranks agree on collectives by name, so all ranks must get equal names. A name is fixed when the graph is built.
It consists of the function, the owner and an index. No name depends on the number of traces, because one rank may trace more
often.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import tensorflow as tf

from tfddl.runtime.job import process
from tfddl.runtime.process_sets import serial

_BRANCH = "CondBranchFuncGraph"
_CONTROL_FLOW = (_BRANCH, "WhileCondFuncGraph", "WhileBodyFuncGraph")
_CONDS = ("Case", "If", "StatelessCase", "StatelessIf")
_calls: Counter[tuple[int, str]] = Counter()
"""How many eager calls each process set (by number) has made with each name."""
_DISTANCES = 64  # between calls that are told apart: TensorFlow keeps a kernel for each name
_TRACE_NUMBER = re.compile(r"^__(?:inference|forward|backward)_(.*?)_\d+$")


def owner_index(kind: str, process_set: int = 0) -> int:
    """The index of a new owner of this kind in the process set: owners count in program order, equal on all members."""
    key = serial(process_set), kind
    # Each process set counts for itself, because a rank may be in sets that its peers are not in.
    process.owners[key] += 1
    return process.owners[key] - 1


def new_owner(kind: str, process_set: int) -> str:
    """The name of a new owner of this kind, for example of one of several optimizers."""
    return f"{kind}.{owner_index(kind, process_set)}"


def unique(base: str, process_set: int) -> str:
    """A name for a call that the user did not name.

    In a tf.function the name is `<function>/<base>`, the second one in the same function `<function>/<base>.1`, and so on.
    Graphs of TF1 are called `graph`, `graph.1` and so on, in the order of their first collectives. In eager mode, where
    calls come one after another, the name is `base`.
    """
    graph = _enclosing_function()
    return base if graph is None else numbered(f"{_function_name(graph)}/{base}", process_set)


def numbered(name: str, process_set: int) -> str:
    """Returns the name at its first use in a tf.function, `<name>.1` at the second use, and so on.

    The branches of a cond or switch exclude each other. Therefore a name in two branches is the same collective, and ranks
    may take different branches. Each process set has names of its own.
    """
    if tf.executing_eagerly():
        return name
    graph: Any = tf.compat.v1.get_default_graph()
    counts, number = _counts(graph), serial(process_set)
    index = counts[number, name]
    found = f"{name}.{index}" if index else name
    while index and counts[number, found]:  # the user has named another collective so
        index += 1
        found = f"{name}.{index}"
    used = Counter({(number, found): 1, (number, name): index + 1})
    counts |= used
    while _is_control_flow(graph):  # after a cond, counting goes on from the branch with the highest count
        graph = graph.outer_graph
        outer = _counts(graph)
        outer |= used  # the higher count of each name
    return found


def count_call(result: tf.Tensor, name: str, process_set: int) -> None:
    """Numbers an eager call: `result` is its first result. Each call of a name has the next number."""
    key = process_set, name
    _calls[key] += 1
    result._tfddl_call = _calls[key]


def of_gradient(operation: Any, suffix: str = ".gradient") -> tuple[str, int]:
    """The name for the collective of an op's gradient, and the number of the op's process set.

    Eager calls share a name, and a tape does not compute their gradients in the same order on all ranks. Therefore the
    gradient of the last call of a name is `<name>.gradient`, of the call before it `<name>[-2].gradient`, and so on. The
    distance is the same on all ranks, also if some have missed earlier calls because they had joined.
    """
    process_set, name = operation.get_attr("process_set"), operation.get_attr("tensor_name").decode()
    last = _calls[process_set, name]
    distance = (last - getattr(operation.outputs[0], "_tfddl_call", last)) % _DISTANCES
    if distance:
        name += f"[{-1 - distance}]"
    return numbered(name + suffix, process_set), process_set


def _counts(graph: Any) -> Counter[tuple[int, str]]:
    """How often each process set has used each name in `graph`; a branch starts with the counts before its cond."""
    counts: Counter[tuple[int, str]] | None = getattr(graph, "_tfddl_names", None)
    if counts is None:
        if _is_one_of(graph, _BRANCH):
            counts = Counter(_before_cond(graph))
        elif _is_control_flow(graph):
            counts = _counts(graph.outer_graph)
        else:
            counts = Counter()
        graph._tfddl_names = counts
    return counts


def _before_cond(branch: Any) -> Counter[tuple[int, str]]:
    """The counts of the outer graph before the cond, or the gradient of a cond, to which a branch belongs.

    TensorFlow adds the op of the cond to the outer graph when it has built all branches.
    """
    outer = branch.outer_graph
    before: dict[int, Counter[tuple[int, str]]] | None = getattr(outer, "_tfddl_before_conds", None)
    if before is None:
        before = outer._tfddl_before_conds = {}
    number = sum(operation.type in _CONDS for operation in outer.get_operations())
    return before.setdefault(number, Counter(_counts(outer)))


def _is_control_flow(graph: Any) -> bool:
    return _is_one_of(graph, *_CONTROL_FLOW) and graph.outer_graph is not None


def _is_one_of(graph: Any, *names: str) -> bool:
    """Whether a graph is of one of these classes. The classes of gradient graphs derive from them."""
    return any(base.__name__ in names for base in type(graph).__mro__)


def _enclosing_function() -> Any | None:
    """The graph of the innermost tf.function (or TF1 graph); the graphs of its conds and loops are part of it."""
    if tf.executing_eagerly():
        return None
    graph: Any = tf.compat.v1.get_default_graph()
    while _is_control_flow(graph):
        graph = graph.outer_graph
    return graph


def _function_name(graph: Any) -> str:
    name = getattr(graph, "name", None)
    if name is None:  # a graph of TF1; sessions may run two of them at a time
        name = getattr(graph, "_tfddl_graph_name", None)
        if name is None:
            index = owner_index("graph")
            name = graph._tfddl_graph_name = f"graph.{index}" if index else "graph"
    match = _TRACE_NUMBER.match(name)
    return match.group(1) if match else name
