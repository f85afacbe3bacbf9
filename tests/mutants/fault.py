"""A fault to plant, and whether it still fits the sources."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fault:
    """One edit that breaks the program, and the test that has to fail then.

    Attributes:
        file: Path of the source file, relative to the root of the repository.
        right: A text that occurs exactly once in the file.
        wrong: The text that replaces it.
        test: The name of a test of the engine, or the node id of a Python test without parameters. The test runs in a
            run of pytest as `extent` says.
        ranks: Number of ranks of the Python test; tests without ranks ignore it.
        extent: `thin`, or `rest` for a slow test.
    """

    file: str
    right: str
    wrong: str
    test: str
    ranks: int = 2
    extent: str = "thin"

    @property
    def in_python(self) -> bool:
        """Whether the test is a Python test."""
        return "::" in self.test

    @property
    def in_library(self) -> bool:
        """Whether the fault needs the library of TensorFlow ops to be compiled again."""
        return self.in_python and self.file.startswith("custom_ops/")

    def misfit(self, root: Path = ROOT) -> str:
        """Says why the fault does not fit the sources; empty if it does."""
        path = root / self.file
        if not path.is_file():
            return f"there is no {self.file}"
        count = path.read_text().count(self.right)
        if count != 1:
            return f"{count} times in {self.file}: {self.right!r}"
        if not self.in_python:
            found = any((root / "custom_ops/tests").rglob(f"{self.test}.cc"))
        else:
            file, function = self.test.split("::")
            found = (root / file).is_file() and f"\ndef {function}(" in (root / file).read_text()
        return "" if found else f"there is no test {self.test}"


def misfits(faults: Mapping[str, Fault]) -> dict[str, str]:
    """The faults that do not fit the sources, each with the reason."""
    return {name: reason for name, fault in faults.items() if (reason := fault.misfit())}
