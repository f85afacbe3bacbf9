"""The contents of graphs, and the order of their calls, through private modules of TensorFlow."""

import functools
import importlib
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import auto_control_deps, func_graph
from tensorflow.python.ops import control_flow_util

_CALLS = re.compile("(Stateful|Stateless)?(If|Case|While|For|PartitionedCall)$")


def being_built() -> list[Any]:
    """The graphs that are being built, from the innermost to the outermost; none in eager mode."""
    graph, found = tf.compat.v1.get_default_graph(), []
    while graph is not None:
        found.append(graph)
        graph = getattr(graph, "outer_graph", None)
    with tf.init_scope():
        eager = tf.executing_eagerly()
    return found[:-1] if eager else found  # the last one is a default graph then, in which nothing is built


def in_xla_context() -> bool:
    """Whether the current trace belongs to a function with `jit_compile=True`, or to the gradient of one."""
    return not tf.executing_eagerly() and _inside_compiled(tf.compat.v1.get_default_graph()) is not None


def mark_compiled(graph: Any) -> None:
    """Marks a graph for its gradient, with the graphs around it, if they are inside a function with `jit_compile=True`.

    TensorFlow forgets this at the end of the trace, and may build the gradient later, inside of the function's graph.
    """
    for each in _inside_compiled(graph) or ():
        each._tfddl_is_compiled = True


def _inside_compiled(graph: Any) -> list[Any] | None:
    """The graph and those around it up to one that XLA compiles, without this one. None if XLA compiles none."""
    inside: list[Any] = []
    while graph is not None:
        if hasattr(graph, "_tfddl_is_compiled") or control_flow_util.InXlaContext(graph):
            return inside
        inside.append(graph)
        graph = getattr(graph, "outer_graph", None)
    return None


def is_stateful_op(kind: str) -> bool:
    """Whether ops of this kind have effects or draw random numbers. True for a kind that TensorFlow does not list."""
    found = importlib.import_module("tensorflow.python.framework.op_def_registry").get(kind)
    return found is None or bool(found.is_stateful)


def op_types(graph: Any) -> set[str]:
    """The types of all operations of a graph, and of the functions that it calls, such as the branches of a cond."""
    operations = graph.get_operations()
    types = {op.type for op in operations}
    waiting = [op.node_def for op in operations if _CALLS.match(op.type)]
    called: set[str] = set()
    while waiting:
        node = waiting.pop()
        types.add(node.op)
        names = _called_by(node) - called
        called |= names
        for function in map(graph._get_function, names):
            waiting += [] if function is None else function.definition.node_def
    return types


def _called_by(node: Any) -> set[str]:
    """The names of the functions that a node calls."""
    functions = [each for value in node.attr.values() for each in (value.func, *value.list.func)]
    return {function.name for function in functions} - {""}


def run_iterations_in_turn(op: Any) -> None:
    """Makes the loops around an op, made by TF1's control flow, begin an iteration when the one before has ended."""
    context = op._get_control_flow_context()
    while context is not None:
        if context.IsWhileContext() and context.parallel_iterations > 1:
            context._parallel_iterations = 1  # for what enters the loop after this
            for each in op.graph.get_operations():
                if each.type.endswith("Enter") and each.get_attr("frame_name").decode() == context.name:
                    each._set_attr("parallel_iterations", attr_value_pb2.AttrValue(i=1))
        context = context.outer_context


def run_before_end(op: Any) -> None:
    """Makes a function without automatic control dependencies end when an op of its graph has run, used or not.

    Without this the next call of the function, or the next iteration of a loop, begins while the op may still run.
    """
    if op.graph.building_function and op._get_control_flow_context() is None:
        op.graph.control_outputs.append(op)


@functools.cache
def separate_traces(key: Callable[[], object]) -> None:
    """Makes each `tf.function` use a trace again only where `key` returns what it returned while the trace was made.

    TensorFlow compares the device scopes and the default graph of a call in the same way.

    Args:
        key: Called with every call of a `tf.function`. Returns something hashable, None where there is nothing to tell.
    """
    contexts: Any = importlib.import_module("tensorflow.python.eager.polymorphic_function.function_context")
    plain = contexts.make_function_context

    @functools.wraps(plain)
    def make_function_context(*arguments: Any, **options: Any) -> Any:
        found, own = plain(*arguments, **options), key()
        return found if own is None else found._replace(context=(found.context, own))

    contexts.make_function_context = make_function_context


class _NoResource:
    """A resource that puts an op among the stateful ops without resources, which TensorFlow runs one after the other.

    The automatic control dependencies know the last op that wrote a resource by the resource's number, and the last
    stateful op without resources by None.
    """

    _id = None
    op = SimpleNamespace(type="")


def chain_calls(
    is_chained: Callable[[str], bool], needs_kernels: Callable[[str], bool], for_xla: Callable[[], None]
) -> None:
    """Makes each later `tf.function` run its calls of functions with ops of certain types in the order of the program.

    Conds and loops with such ops are calls as well. These calls, and the stateful ops without resources, run one after the
    other. TensorFlow alone lets two calls run at once if they read variables and neither writes a variable of the other.
    TensorFlow orders nothing in a function without automatic control dependencies: the gradient of a function for two tapes
    outside of it, or for a persistent one, with its conds and loops; a function of `tf.compat.v1.wrap_function`; a branch of
    a cond in a graph of TensorFlow 1. tfddl orders the calls there, too.

    Args:
        is_chained: Whether calls of functions with ops of this type run in order.
        needs_kernels: Whether XLA needs a kernel of tfddl's for ops of this type.
        for_xla: Called when a function with `jit_compile=True` calls a function with ops that need kernels, which may have
            been traced before for a function without it.
    """
    chain = _NoResource()
    calls_chained, calls_kernels = _calls_ops(is_chained), _calls_ops(needs_kernels)

    @auto_control_deps.register_acd_resource_resolver
    def tfddl_calls_in_order(op: Any, _reads: Any, writes: Any) -> bool:
        if not _CALLS.match(op.type) or chain in writes or not calls_kernels(op.graph, op.node_def):
            return False
        context = control_flow_util.GetContainingXLAContext(op._get_control_flow_context())
        if context is not None or _inside_compiled(op.graph) is not None:
            for_xla()
        added = calls_chained(op.graph, op.node_def)
        if added:
            writes.add(chain)
        return added

    # TensorFlow records an op's traceback before it calls this method, so that the traceback does not show the wrapper.
    plain = func_graph.FuncGraph._create_op_helper

    @functools.wraps(plain)
    def create_op_in_order(graph: Any, op: Any, compute_device: bool = True) -> None:
        plain(graph, op, compute_device)
        imported = not compute_device  # ops of a GraphDef come in any order, and have their control inputs
        if imported or graph.experimental_acd_manager is not None or not _CALLS.match(op.type):
            return
        if calls_chained(graph, op.node_def):
            context = op._get_control_flow_context()
            last_calls = graph._tfddl_last_calls = getattr(graph, "_tfddl_last_calls", {})
            if context in last_calls:
                op._add_control_input(last_calls[context])
            last_calls[context] = op
            run_before_end(op)

    func_graph.FuncGraph._create_op_helper = create_op_in_order


def _calls_ops(is_wanted: Callable[[str], bool]) -> Callable[[Any, Any], bool]:
    """Makes a function of a graph and a node, which says whether the node calls functions with ops of wanted types."""
    known: dict[str, bool] = {}

    def has_such_ops(graph: Any, name: str) -> bool:
        if name not in known:
            function = graph._get_function(name)
            nodes = [] if function is None else function.definition.node_def
            known[name] = any(is_wanted(node.op) or calls_such_ops(graph, node) for node in nodes)
        return known[name]

    def calls_such_ops(graph: Any, node: Any) -> bool:
        return bool(_CALLS.match(node.op)) and any(has_such_ops(graph, name) for name in _called_by(node))

    return calls_such_ops
