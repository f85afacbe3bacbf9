"""The error and warning messages of Python sources, collected from their syntax trees."""

import ast
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from message import Message, value, words

_LIMIT = 12  # texts that one message may have, by its branches
_DEPTH = 3  # functions between a text and the place that raises


class _Sink(NamedTuple):
    """A function that puts a parameter into a message: `text` holds it as `{parameter}`."""

    parameter: str
    position: int
    kind: str
    text: str


class _Scope(NamedTuple):
    file: Path
    function: ast.FunctionDef | None


class PythonMessages:
    """The messages of all Python files below a folder.

    Args:
        folder: Path of the package.
    """

    def __init__(self, folder: Path):
        self._root = folder.parent
        self._trees = {file: ast.parse(file.read_text()) for file in sorted(folder.rglob("*.py"))}
        self._functions: dict[str, list[_Scope]] = {}
        self._constants: dict[str, dict[Path, ast.expr]] = {}
        self._owners: dict[ast.AST, ast.FunctionDef] = {}
        self._called: dict[str, list[tuple[_Scope, ast.Call]]] = {}
        self._assigned: dict[tuple[ast.FunctionDef | None, str], list[ast.expr]] = {}
        self._returned: dict[ast.FunctionDef | None, list[ast.expr]] = {}
        for file, tree in self._trees.items():
            self._index(file, tree)

    def _index(self, file: Path, tree: ast.Module) -> None:
        for statement in tree.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self._constants.setdefault(statement.targets[0].id, {})[file] = statement.value
        for node in ast.walk(tree):  # outer functions come first, so that the innermost one stays
            if isinstance(node, ast.FunctionDef):
                self._functions.setdefault(node.name, []).append(_Scope(file, node))
                self._owners |= dict.fromkeys(ast.walk(node), node)
        for node in ast.walk(tree):
            owner = self._owners.get(node)
            if isinstance(node, ast.Call):
                self._called.setdefault(_last_name(node.func), []).append((_Scope(file, owner), node))
            elif isinstance(node, ast.Return) and node.value:
                self._returned.setdefault(owner, []).append(node.value)
            elif isinstance(node, ast.Assign) and owner:
                for target in node.targets:
                    self._assigned.setdefault((owner, _last_name(target)), []).append(node.value)

    def collect(self) -> list[Message]:
        """All messages, by file and line."""
        found, sinks = set[Message](), dict[str, set[_Sink]]()
        for scope, node, kind, made in self._places():
            for text in self._texts(made, scope):
                self._note(scope, node, kind, text, found, sinks)
        done = set[tuple[str, _Sink]]()
        for _ in range(_DEPTH):
            new = {(name, sink) for name, of_name in sinks.items() for sink in of_name} - done
            done |= new
            for name, sink in new:
                for scope, node, given in self._calls(name, sink):
                    for text in self._texts(given, scope):
                        if words(text) > 2 or text.startswith("{"):
                            whole = sink.text.replace(value(sink.parameter), text)
                            self._note(
                                scope, node, sink.kind, whole, found if words(text) > 2 else set(), sinks
                            )
        return sorted(found)

    def _note(self, scope, node, kind, text, found, sinks) -> None:
        """Keeps a text that is a message, and what a parameter of its function would make of it."""
        for position, name in enumerate(_parameters(scope.function)):
            if value(name) in text.partition("Received")[0]:
                of_name = sinks.setdefault(scope.function.name, set())
                of_name.add(_Sink(name, position, kind, text))
        if words(text) > 2:
            found.add(
                Message(str(scope.file.relative_to(self._root)), node.lineno, kind, " ".join(text.split()))
            )

    def _places(self) -> Iterator[tuple[_Scope, ast.AST, str, ast.expr]]:
        """Each place that makes a message, with the expression of its text."""
        for file, tree in self._trees.items():
            for node in ast.walk(tree):
                made = node.exc if isinstance(node, ast.Raise) else None
                made = node.value if isinstance(node, ast.Return) else made
                scope = _Scope(file, self._owners.get(node))
                if isinstance(made, ast.Call) and made.args:
                    name = _last_name(made.func)
                    if name.endswith(("Error", "Parameter", "Exception", "Failed", "Argument")):
                        yield scope, node, name, made.args[0]
                if isinstance(node, ast.Call) and node.args:
                    name = ast.unparse(node.func)
                    if name == "warnings.warn" or name.endswith(("logger.warning", "logger.error")):
                        yield scope, node, "warning", node.args[0]
                    elif name == "sys.exit":
                        yield scope, node, "stderr", node.args[0]
                    elif name == "self.fail":
                        yield scope, node, "BadParameter", node.args[0]
                    elif name in ("print", "click.echo") and any(
                        ast.unparse(each) in ("file=sys.stderr", "err=True") for each in node.keywords
                    ):
                        yield scope, node, "stderr", node.args[0]

    def _calls(self, function: str, sink: _Sink) -> Iterator[tuple[_Scope, ast.AST, ast.expr]]:
        """The calls of a function, with the argument that comes into a message."""
        for scope, node in self._called.get(function, []):
            given = {each.arg: each.value for each in node.keywords}
            if sink.position < len(node.args):
                given[sink.parameter] = node.args[sink.position]
            if sink.parameter in given:
                yield scope, node, given[sink.parameter]

    def _texts(self, node: ast.expr, scope: _Scope, depth: int = 0) -> list[str]:
        """The texts that an expression may have."""
        inner = functools.partial(self._texts, scope=scope, depth=depth)
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                return _products([inner(part) for part in parts])
            case ast.FormattedValue(value=inside):
                return inner(inside)
            case ast.BinOp(op=ast.Add()):
                return _products([inner(node.left), inner(node.right)])
            case ast.IfExp():
                return [*inner(node.body), *inner(node.orelse)]
            case ast.BoolOp(op=ast.Or()):
                return [text for each in node.values for text in inner(each)]
            case ast.Call(func=ast.Attribute(value=text, attr="format" | "strip")):
                return inner(text)
            case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join"), args=[ast.List(elts=parts)]):
                return _products([inner(part) for part in parts])
            case ast.Starred():
                return [""]
        if depth < _DEPTH:
            found = [
                text
                for expression, of in self._values(node, scope)
                for text in self._texts(expression, of, depth + 1)
            ]
            is_constant = isinstance(node, ast.Name) and node.id.isupper() and "{" not in "".join(found)
            if found and (is_constant or any(words(text) > 1 for text in found)):
                return found[:_LIMIT]
        return [value(_label(node))]

    def _values(self, node: ast.expr, scope: _Scope) -> Iterator[tuple[ast.expr, _Scope]]:
        """The expressions behind a name, or those that a function returns."""
        if isinstance(node, ast.Name):
            for made in self._assigned.get((scope.function, node.id), []):
                yield made, scope
            of_name = self._constants.get(node.id, {})
            if scope.file in of_name or len(of_name) == 1:  # of this module, or imported
                yield of_name.get(scope.file, next(iter(of_name.values()))), scope
        elif isinstance(node, ast.Call):
            for of in self._functions.get(_last_name(node.func), [])[:1]:
                for made in self._returned.get(of.function, []):
                    yield made, of


def _parameters(function: ast.FunctionDef | None) -> list[str]:
    """The parameters of a function, without that of a method."""
    if function is None:
        return []
    arguments = function.args
    names = [each.arg for each in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
    return names[names[:1] in (["self"], ["cls"]) :]


def _products(parts: list[list[str]]) -> list[str]:
    return ["".join(each) for each in itertools.islice(itertools.product(*parts), _LIMIT)]


def _last_name(node: ast.AST) -> str:
    """`warn` of `log.warn`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _label(node: ast.expr) -> str:
    """A short name for a value."""
    match node:
        case ast.Name() | ast.Attribute():
            return _last_name(node)
        case ast.Call(func=ast.Attribute(value=inside, attr=attribute), args=[]):
            return _label(inside) if attribute in ("decode", "strip") else attribute
        case ast.Call(args=[only, *_]):
            return _label(only)
        case ast.Subscript(value=inside):
            return _label(inside)
    return "..."
