"""One line of `tfddl doctor`."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, FAULT = "ok", "note", "fault"


@dataclass(frozen=True)
class Finding:
    """The result of a probe.

    Attributes:
        subject: Its subject, in a word or two.
        state: `OK`; `NOTE` for a choice that may be meant so; `FAULT` for what keeps tfddl from working.
        text: The state of things, with versions and numbers.
        cure: The one command, or the one change, that mends a fault or changes a choice.
    """

    subject: str
    state: str
    text: str
    cure: str = ""


def ok(subject: str, text: str) -> Finding:
    """A finding without a fault."""
    return Finding(subject, OK, text)


def note(subject: str, text: str, cure: str = "") -> Finding:
    """A finding that may be meant so."""
    return Finding(subject, NOTE, text, cure)


def fault(subject: str, text: str, cure: str) -> Finding:
    """A finding that keeps tfddl from working."""
    return Finding(subject, FAULT, text, cure)
