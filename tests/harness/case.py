"""What travels between pytest and the ranks: a case to run, and what came of it."""

import dataclasses
import sys
import traceback
from pathlib import Path
from typing import Any

PASSED, FAILED, SKIPPED, HUNG, DIED = "passed", "failed", "skipped", "hung", "died"

_TESTS = str(Path(__file__).resolve().parents[1])

_LOCALS_LIMIT = 600
"""Characters of one local variable in a report: a tensor's head says enough."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A test body, named rather than sent: the ranks import it themselves.

    Attributes:
        module: Module name.
        function: Name of the decorated function in the module.
        arguments: What pytest passes by parametrization or fixtures; has to pickle.
        search: `sys.path` of pytest, so that the name means the same file.
    """

    module: str
    function: str
    arguments: dict[str, Any]
    search: tuple[str, ...] = dataclasses.field(default_factory=lambda: tuple(sys.path))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one rank did with a case."""

    rank: int
    kind: str
    text: str = ""
    seconds: float = 0.0


def stack_file(directory: str | Path, rank: int) -> Path:
    """Where a rank writes the stacks of its Python threads when it gets SIGUSR1."""
    return Path(directory) / f"stack.{rank}.txt"


def describe(error: BaseException) -> str:
    """A traceback with the variables of its innermost test frame: workers have no assertion rewriting."""
    lines = "".join(traceback.format_exception(error)).rstrip()
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [frame for frame in frames if frame.f_code.co_filename.startswith(_TESTS)]
    variables = own[-1].f_locals if own else {}
    values = [f"    {name} = {_short(value)}" for name, value in variables.items() if not callable(value)]
    return "\n".join([lines, "  with", *values]) if values else lines


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # A broken repr must not hide the failure that is being reported.
        text = f"<repr failed: {error}>"
    return text if len(text) <= _LOCALS_LIMIT else text[:_LOCALS_LIMIT] + "..."
