"""Makes reStructuredText of docstrings, which are in Google style with Markdown's backticks and indented examples."""

import re

from sphinx.application import Sphinx

_SECTION = re.compile(r"[A-Z]\w*( \w+)?:$")
_PAGE = re.compile(r"`?docs/([\w/-]+)\.md`?")
_NAME = re.compile(r"(?<![`:\w])`(?:hvd|tfddl)\.(\w+(?:\.\w+)*)`(?!`)")


def rewrite(lines: list[str]) -> list[str]:
    """Marks indented examples as code, and makes links of pages and public names.

    Args:
        lines: A docstring without the indentation of its body.

    Returns:
        The lines for napoleon, which knows the sections.
    """
    result: list[str] = []
    section = code = False
    for line in lines:
        indented = line.startswith("    ")
        if line and not indented:
            section, code = bool(_SECTION.match(line)), False
        if indented and not section and not code and result and not result[-1]:
            result += [".. code-block:: python", ""]
            code = True
        result.append(line if code else _linked(line))
    return result


def _linked(line: str) -> str:
    return _NAME.sub(r":py:obj:`tfddl.\1`", _PAGE.sub(r":doc:`/\1`", line))


def _process(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    lines[:] = rewrite(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Runs before napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    return {"parallel_read_safe": True}
