"""Finds the seeds of shuffles, and of random numbers that choose, repeat or move elements, in graphs of tf.data."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

Seeds = tuple[int | None, int | None]
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
# Functions by whose result a step keeps, drops or groups elements: `filter`, `take_while`, `group_by_window`.
CHOOSERS = ("predicate", "key_func", "window_size_func")
# Ops that return one of several datasets, by the result of their first input.
_BRANCHES = ("Case", "If", "StatelessCase", "StatelessIf")
# The input of an op that determines how many rows its result has: `tf.boolean_mask`, `tf.repeat`, `rows[:n]`.
_COUNT_INPUTS = {"StridedSlice": 2, "Where": 0}
_Nodes = dict[str, Any]


class Graph(NamedTuple):
    """The nodes, by name, of a graph or of one of its functions.

    Attributes:
        nodes: The nodes.
        functions: The nodes of each function that a node may call.
        chooses: Whether a step keeps, drops or groups elements by the result.
    """

    nodes: _Nodes
    functions: dict[str, _Nodes]
    chooses: bool


def split(graph: Any, chooses: bool) -> Iterator[Graph]:
    """The graph itself, and each of its functions."""
    functions = {
        each.signature.name: {node.name: node for node in each.node_def} for each in graph.library.function
    }
    for nodes in ({node.name: node for node in graph.node}, *functions.values()):
        yield Graph(nodes, functions, chooses)


def seeds_inside(graph: Graph) -> Iterator[Seeds]:
    """The seeds of each shuffle in a graph, and of the random numbers that choose, repeat or move elements."""
    if graph.chooses:
        yield from _seeds_of(graph.nodes.values())
    for node in graph.nodes.values():
        if (first := _SEED_INPUTS.get(node.op)) is not None:
            yield _seed(graph.nodes, node.input[first]), _seed(graph.nodes, node.input[first + 1])
        if _makes_dataset(node):
            yield from _seeds_of(_deciding(node, graph))


def _makes_dataset(node: Any) -> bool:
    branches = node.op in _BRANCHES and tf.variant.as_datatype_enum in node.attr["Tout"].list.type
    return branches or "Dataset" in node.op


def _seeds_of(nodes: Iterable[Any]) -> Iterator[Seeds]:
    """The seeds of the nodes with random numbers."""
    for node in nodes:
        if "seed2" in node.attr:
            yield node.attr["seed"].i, node.attr["seed2"].i


def _deciding(node: Any, graph: Graph) -> Iterator[Any]:
    """The nodes that determine how many elements the dataset of a node has, or their order."""
    for name in CHOOSERS:
        yield from _called(node.attr[name].func.name, graph.functions)
    if node.op == "TensorSliceDataset":
        yield from _moving_rows(node, graph)
    elif node.op != "TensorDataset":  # one element, and its values may be random numbers
        first, last = _captured(node)
        yield from _computed_from([*node.input[:first], *node.input[last:]], graph)


def _moving_rows(node: Any, graph: Graph) -> Iterator[Any]:
    """The nodes that move or count the rows of all components: next to a component in its order, values may move."""
    components = []
    for component in node.input:
        nodes = list(_computed_from([component], graph))
        moving = [each for each in nodes if each.op == "RandomShuffle"]
        for each in nodes:
            if each.op in _COUNT_INPUTS and graph.nodes.get(each.name) == each:
                moving += _computed_from([each.input[_COUNT_INPUTS[each.op]]], graph)
        components.append([each for each in moving if "seed2" in each.attr])
    if all(components):
        yield from itertools.chain.from_iterable(components)


def _captured(node: Any) -> tuple[int, int]:
    """The first of the inputs that functions which do not choose, or branches, capture, and the place behind the last."""

    def count(name: str) -> int:
        return len(node.attr[name].list.type)

    if node.attr["predicate"].func.name:
        return len(node.input), len(node.input)
    first = 1 + count("Tkey_func_other_arguments")
    return first, first + sum(map(count, ("Targuments", "Tin", "Treduce_func_other_arguments")))


def _computed_from(inputs: list[str], graph: Graph) -> Iterator[Any]:
    """The nodes that these inputs are computed from, up to datasets."""
    seen = set()
    while inputs:
        node = graph.nodes.get(inputs.pop().partition(":")[0])
        if node is not None and node.name not in seen and not _makes_dataset(node):
            seen.add(node.name)
            yield node
            inputs += node.input
            for each in node.attr.values():
                yield from _called(each.func.name, graph.functions)


def _called(function: str, functions: dict[str, _Nodes]) -> Iterator[Any]:
    """The nodes of a function, and of those that it calls; none if there is no such function."""
    nodes = functions.get(function, {})
    yield from _computed_from(list(nodes), Graph(nodes, functions, False))


def _seed(nodes: _Nodes, name: str) -> int | None:
    """The seed that an input of a node is; None if the function computes it."""
    node = nodes.get(name.partition(":")[0])
    if node is not None and node.op == "SelectV2":  # TensorFlow has another number for the seeds 0 and 0
        return _seed(nodes, node.input[2]) or _NOT_0
    return (
        int(tf.make_ndarray(node.attr["value"].tensor)) if node is not None and node.op == "Const" else None
    )
