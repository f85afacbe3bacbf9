"""The headings of the page on troubleshooting are messages that tfddl prints."""

import re

from tests.harness.job import REPOSITORY

VALUES = r"\.\.\.|tfddlrun: |'|signal 9 \(SIGKILL\)"
PAGE = REPOSITORY / "docs" / "help" / "troubleshooting.md"


def printed() -> str:
    """The strings of all sources, those of one message joined; for a value that is put in, as for a break, one space."""
    files = [*(REPOSITORY / "tfddl").rglob("*.py"), *(REPOSITORY / "custom_ops").rglob("*.cc")]
    strings = (
        re.findall(r'"((?:[^"\\\n]|\\.)*)"', file.read_text()) for file in files if "tests" not in file.parts
    )
    return re.sub(
        r"\s+", " ", re.sub(r"\{[^{}]*\}", "", "".join(each for of_file in strings for each in of_file))
    )


def test_headings_are_messages():
    headings = re.findall(r"^### `(.+)`$", PAGE.read_text(), re.MULTILINE)
    assert len(headings) > 20
    text = printed()
    # A heading has `...`, or an example, where a message has a value.
    pieces = [piece.strip() for heading in headings for piece in re.split(VALUES, heading)]
    assert not [piece for piece in pieces if piece not in text]
