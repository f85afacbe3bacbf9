"""The tree reads like the architecture: imports and includes point down, and none goes in a circle."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# From the top. A layer may use those below it.
PYTHON = (
    "cli",
    "compat",
    "timeline",
    "doctor",
    "flight",
    "bench",
    "report",
    "callbacks",
    "elastic",
    "launch",
    "data",
    "keras",
    "v1",
    "gradients",
    "ops",
    "runtime",
    "_graphs",
    "_compat",
    "build",
    "_environment",
)
ENGINE = (
    "xla",
    "tensorflow",
    "api",
    "core/compiled",
    "core/process",
    "core/watchdog",
    "core/engine",
    "gpu",
    "core/agreement",
    "core/trace",
    "core/collectives",
    "core/topology",
    "core/arithmetic",
    "transport",
    "base",
)
MOST_FILES = 25


def python_imports() -> dict[str, set[str]]:
    """Module -> modules of tfddl that it imports, at its top or in a function; less those for type checks."""
    files = {path: module_name(path) for path in sorted((ROOT / "tfddl").rglob("*.py"))}
    modules = set(files.values())
    return {name: imports_of(path, name, modules) - {name} for path, name in files.items()}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, name: str, modules: set[str]) -> set[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in at_run_time(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join(above + ([node.module] if node.module else []))
            for alias in node.names:
                found.add(f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base)
    return found & modules


def at_run_time(tree: ast.AST):
    """Walks a tree, without the bodies of `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from at_run_time(node)


def includes() -> dict[str, set[str]]:
    """File of the engine, without its ending -> those that it or its header includes."""
    root = ROOT / "custom_ops"
    files = [
        path
        for layer in ENGINE
        for path in sorted((root / layer).glob("*.*"))
        if path.suffix in (".h", ".cc")
    ]
    names = {path.relative_to(root).with_suffix("").as_posix() for path in files}
    graph = {name: set() for name in names}
    for path in files:
        name = path.relative_to(root).with_suffix("").as_posix()
        found = re.findall(r'^#include "([^"]+)\.h"', path.read_text(), re.MULTILINE)
        graph[name] |= (set(found) & names) - {name}
    return graph


def layer(name: str, layers: tuple[str, ...] | list[str], separator: str) -> int:
    """Returns the index of the layer of a file; -1: of none."""
    return next((i for i, each in enumerate(layers) if name == each or name.startswith(each + separator)), -1)


def pointing_up(graph: dict[str, set[str]], layers, separator: str, prefix: str = "") -> list[str]:
    def of(name):
        return layer(name.removeprefix(prefix), layers, separator)

    return sorted(
        f"{name} -> {used}"
        for name, uses in graph.items()
        for used in uses
        if of(name) >= 0 and 0 <= of(used) < of(name)
    )


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of files that reach each other (Tarjan's strongly connected components)."""
    index, low, stack, found = {}, {}, [], []

    def visit(name):
        index[name] = low[name] = len(index)
        stack.append(name)
        for used in sorted(graph[name]):
            if used not in index:
                visit(used)
                low[name] = min(low[name], low[used])
            elif used in stack:
                low[name] = min(low[name], index[used])
        if low[name] == index[name]:
            group = [stack.pop()]
            while group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def folders() -> dict[str, int]:
    """Folder of sources or tests -> how many files it holds."""
    tops = [
        ROOT / name
        for name in ("tfddl", "custom_ops", "tests", "examples", "benchmarks", "docs")
        if (ROOT / name).is_dir()
    ]
    every = [top for top in tops] + [path for top in tops for path in top.rglob("*") if path.is_dir()]
    return {
        path.relative_to(ROOT).as_posix(): sum(1 for file in path.iterdir() if file.is_file())
        for path in every
        if "__pycache__" not in path.parts
    }


def test_every_file_of_the_engine_is_in_a_layer():
    root = ROOT / "custom_ops"
    sources = {path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.cc")}
    outside = {name for name in sources if layer(name, ENGINE, "/") < 0}
    assert {name.split("/")[0] for name in outside} <= {"tests", "benchmarks"}


def test_every_module_is_in_a_layer():
    outside = [
        name
        for name in python_imports()
        if name != "tfddl" and layer(name.removeprefix("tfddl."), PYTHON, ".") < 0
    ]
    assert not outside


def test_imports_point_down():
    assert not pointing_up(python_imports(), PYTHON, ".", "tfddl.")


def test_includes_point_down():
    assert not pointing_up(includes(), ENGINE, "/")


@pytest.mark.parametrize("graph", [python_imports, includes])
def test_nothing_goes_in_a_circle(graph):
    assert not circles(graph())


def test_no_folder_is_a_heap():
    assert {name: files for name, files in folders().items() if files > MOST_FILES} == {}
