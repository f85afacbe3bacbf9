"""What a graph of TF1 trains, and by which collectives: read off its operations."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tfddl import _compat

_COLLECTIVE = re.compile("Tfddl(Allreduce|Reducescatter|Allgather|Alltoall|Broadcast)")
_BROADCAST, _JOIN = "TfddlBroadcast", "TfddlJoin"
_WRITE = re.compile("(Resource)?(Sparse)?Apply|(Resource)?Scatter|Assign")
# By more than an initializer, a restored file or a copy of another network has.
_STEP = re.compile("(Resource)?(Sparse)?Apply|(Resource)?Scatter(Add|Sub)|Assign(Add|Sub)")
_PASSED_ON = re.compile("(Ref)?(Switch|Enter|Identity)$")


class Run(NamedTuple):
    """What one run of a graph does."""

    collectives: frozenset[str]
    """Names of those collectives of `Training.collectives` that it runs, whatever the values of tensors; none if this rank
    joins in it, after which nothing of its own may run."""
    trained: frozenset[str]
    """Names of the variables that it trains."""
    uncombined: frozenset[str]
    """Those of them that no collective comes before the update of, in this run or in one that fills an accumulator."""


class Training:
    """The operations of a graph that train variables.

    Args:
        graph: Complete: what is added later is not seen.
        variables: Those to look at, of the graph.

    Attributes:
        collectives: By its name, each collective that comes before a write to one of the variables: a rank that runs it
            meets all its peers there. Those in a cond or a loop may not run, and are no part of it.
        trained: Names of the variables that optimizers train.
    """

    def __init__(self, graph: Any, variables: Iterable[Any]) -> None:
        self._graph = graph
        self._name_of = {variable.op: variable.name for variable in variables}
        operations = graph.get_operations()
        sources = [op for op in operations if self._holds_collective(op)]
        accumulators = self._accumulators(operations, [op for op in sources if op.type != _BROADCAST])
        self._combined = _descendants(operations, {*sources, *accumulators})
        before = _ancestors([op for op in self._combined if self._written(op, _WRITE)])
        self.collectives = {
            _name(op): op
            for op in sources
            if _COLLECTIVE.match(op.type)
            and op.type != _BROADCAST
            and op in before
            and op._get_control_flow_context() is None
        }
        self.trained = self._trained_by(operations)
        self._known: dict[tuple[frozenset[str], frozenset[str]], Run] = {}

    def of_run(self, fetches: Any, feeds: Any) -> Run:
        """What `session.run(fetches, feeds)` does."""
        targets = frozenset(self._elements(fetches))
        fed = frozenset(self._elements(list(feeds or ())))
        if (targets, fed) not in self._known:
            self._known[targets, fed] = self._look(targets, fed)
        return self._known[targets, fed]

    def _look(self, targets: frozenset[str], fed: frozenset[str]) -> Run:
        elements = [self._graph.as_graph_element(name) for name in targets - fed]
        run = _ancestors([getattr(element, "op", element) for element in elements], fed)
        names = {_name(op) for op in run if _COLLECTIVE.match(op.type)}
        joins = any(op.type == _JOIN for op in run)
        return Run(
            frozenset() if joins else frozenset(names & set(self.collectives)),
            self._trained_by(run),
            self._trained_by(run - self._combined),
        )

    def _trained_by(self, operations: Iterable[Any]) -> frozenset[str]:
        return frozenset(name for op in operations for name in self._written(op, _STEP))

    def _elements(self, structure: Any) -> list[str]:
        """Names of the tensors and operations in what a session was given; it is the session that raises at others."""
        names = []
        for each in _leaves(structure):
            try:
                names.append(self._graph.as_graph_element(each).name)
            except (TypeError, ValueError, KeyError):
                continue
        return names

    def _holds_collective(self, op: Any) -> bool:
        if _compat.calls_functions(op.type):
            return _holds_collective(self._graph, op.node_def)
        return bool(_COLLECTIVE.match(op.type))

    def _accumulators(self, operations: Iterable[Any], sources: Iterable[Any]) -> set[Any]:
        """Other variables that keep what comes of the sources until another run makes an update of it."""
        found: set[Any] = set()
        while True:
            data = _descendants(operations, {*sources, *found}, by_control=False)
            writes = (op for op in data if _WRITE.match(op.type))
            filled = (op for op in writes if any(tensor.op in data for tensor in list(op.inputs)[1:]))
            more = {_origin(op.inputs[0].op) for op in filled} - found - set(self._name_of)
            if not more:
                return found
            found |= more

    def _written(self, op: Any, kind: re.Pattern[str]) -> list[str]:
        """The variables that an operation writes to by a kind of operations, itself or in functions that it calls."""
        if kind.match(op.type):
            targets = list(op.inputs[:1])
        elif _compat.calls_functions(op.type):
            places = _written_inputs(self._graph, op.node_def, len(op.inputs), kind)
            targets = [op.inputs[place] for place in sorted(places)]
        else:
            return []
        origins = [_origin(target.op) for target in targets]
        return [self._name_of[each] for each in origins if each in self._name_of]


def _leaves(structure: Any) -> Iterator[Any]:
    """What a session takes in a structure: it does not sort the keys of a dict, which may be of several types."""
    if isinstance(structure, Mapping):
        structure = list(structure.values())
    if type(structure) in (list, tuple):
        for each in structure:
            yield from _leaves(each)
    else:
        yield from tf.nest.flatten(structure, expand_composites=True)


def _origin(op: Any) -> Any:
    while _PASSED_ON.match(op.type):
        op = op.inputs[0].op
    return op


def _holds_collective(graph: Any, node: Any) -> bool:
    """Whether a node, or what it calls, is a collective."""
    inside = (each for function in _compat.functions_called_by(graph, node) for each in function.node_def)
    return bool(_COLLECTIVE.match(node.op)) or any(_holds_collective(graph, each) for each in inside)


def _written_inputs(graph: Any, node: Any, inputs: int, kind: re.Pattern[str]) -> set[int]:
    """Which inputs of a node are variables that the functions that it calls write to, by their place."""
    places = set()
    for function in _compat.functions_called_by(graph, node):
        names = [argument.name for argument in function.signature.input_arg]
        first = inputs - len(names)  # behind what chooses a branch
        for each in function.node_def:
            given = [name for name in each.input if not name.startswith("^")]
            inner = {0} if kind.match(each.op) else _written_inputs(graph, each, len(given), kind)
            places |= {first + names.index(given[place]) for place in inner if given[place] in names}
    return places


def _name(collective: Any) -> str:
    return str(collective.get_attr("tensor_name").decode())


def _descendants(operations: Iterable[Any], sources: Iterable[Any], by_control: bool = True) -> set[Any]:
    """The sources, and all that waits for one of them; without `by_control` what is computed of them."""
    children: dict[Any, list[Any]] = {}
    for op in operations:
        for tensor in op.inputs:
            children.setdefault(tensor.op, []).append(op)
        for parent in op.control_inputs if by_control else ():
            children.setdefault(parent, []).append(op)
    found, waiting = set(), list(sources)
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += children.get(op, [])
    return found


def _ancestors(targets: Iterable[Any], fed: frozenset[str] = frozenset()) -> set[Any]:
    """The targets, and all that they wait for where the tensors of these names are given."""
    found, waiting = set(), list(targets)
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [tensor.op for tensor in op.inputs if tensor.name not in fed]
            waiting += op.control_inputs
    return found
