"""Searches graphs of tf.data for the seeds of shuffles and of random numbers."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

Nodes = dict[str, Any]
Seeds = tuple[int | None, int | None]
# Functions by whose result a step keeps, drops or groups elements: `filter`, `take_while`, `group_by_window`.
CHOOSERS = ("predicate", "key_func", "window_size_func")
_NOT_0 = 2**31 - 1
# The first of the two inputs that are seeds.
_SEED_INPUTS = {
    "RandomDataset": 0,
    "RandomDatasetV2": 0,
    "ShuffleAndRepeatDataset": 2,
    "ShuffleAndRepeatDatasetV2": 2,
    "ShuffleDataset": 2,
    "ShuffleDatasetV3": 2,
}


def split(graph: Any) -> Iterator[Nodes]:
    """The nodes, by name, of a graph and of the functions that it calls.

    Functions of steps that compute elements, such as `map`, are left out: they do not move elements.
    """
    functions = {each.signature.name: each for each in graph.library.function}
    waiting = [graph.node]
    while waiting:
        nodes = {node.name: node for node in waiting.pop()}
        yield nodes
        for node in nodes.values():
            for name in _called(node, functions):
                waiting.append(functions.pop(name).node_def)


def seeds_in(nodes: Nodes) -> Iterator[Seeds]:
    """The seeds of each shuffle, and of each op that draws random numbers."""
    for node in nodes.values():
        if (first := _SEED_INPUTS.get(node.op)) is not None:
            yield _seed(nodes, node.input[first]), _seed(nodes, node.input[first + 1])
        elif "seed2" in node.attr:
            yield node.attr["seed"].i, node.attr["seed2"].i


def _called(node: Any, functions: dict[str, Any]) -> list[str]:
    """The names of those functions of a node that return datasets or choose elements; of an op that is no step, all."""
    step = "Dataset" in node.op
    names = {
        function.name: None  # each once, in an order that all ranks have
        for key, value in sorted(node.attr.items())
        for function in (value.func, *value.list.func)
        if function.name in functions
        and (not step or key in CHOOSERS or _makes_dataset(functions[function.name]))
    }
    return list(names)


def _makes_dataset(function: Any) -> bool:
    return any(each.type == tf.variant.as_datatype_enum for each in function.signature.output_arg)


def _seed(nodes: Nodes, name: str) -> int | None:
    """The seed that an input of a node is; None if the function computes it."""
    node = nodes.get(name.partition(":")[0])
    if node is not None and node.op == "SelectV2":  # TensorFlow has another number for the seeds 0 and 0
        return _seed(nodes, node.input[2]) or _NOT_0
    return (
        int(tf.make_ndarray(node.attr["value"].tensor)) if node is not None and node.op == "Const" else None
    )
