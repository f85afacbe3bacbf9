"""One message of tfddl, as the sources have it."""

from typing import NamedTuple


class Message(NamedTuple):
    """One message: `text` has each value that is put in as `{name}`, `kind` is the exception, `warning` or `stderr`."""

    file: str
    line: int
    kind: str
    text: str


def value(name: str) -> str:
    """The place of a value in a text."""
    return "{" + name + "}"


def words(text: str) -> int:
    """The number of a message's own words, without those of the values."""
    kept, depth = "", 0
    for letter in text:
        depth += (letter == "{") - (letter == "}")
        kept += letter if not depth and letter != "}" else ""
    return sum(any(map(str.isalpha, word)) for word in kept.split())
