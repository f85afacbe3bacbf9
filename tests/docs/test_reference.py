"""Every public name stands on one page of the reference."""

import ast
import re
from collections import Counter
from pathlib import Path

import tfddl
from tests.harness.job import REPOSITORY

MODULES = {"tfddl": tfddl} | {f"tfddl.{name}": getattr(tfddl, name) for name in tfddl._PACKAGES}


def documented() -> Counter[str]:
    """How often the pages ask for the documentation of each name."""
    found: Counter[str] = Counter()
    for page in sorted((REPOSITORY / "docs" / "reference").glob("*.md")):
        module = ""
        for directive, name in re.findall(r"^\.\. (\w+):: (\S+)", page.read_text(), re.MULTILINE):
            if directive == "currentmodule":
                module = name
            elif directive.startswith("auto"):
                found[f"{module}.{name}"] += 1
    return found


def test_editors_and_mypy_know_every_public_name():
    tree = ast.parse(Path(tfddl.__file__).read_text())
    (known,) = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    names = [alias.asname for line in known.body for alias in line.names]
    assert sorted(["__version__", *names]) == sorted(tfddl.__all__)


def test_every_public_name_is_documented_once():
    public = {
        f"{module}.{name}"
        for module, home in MODULES.items()
        for name in home.__all__
        if f"{module}.{name}" not in MODULES
    }
    assert documented() == Counter(public)
