"""The page with all messages of tfddl: what each states, what it quotes, what to do.

Sphinx fills `docs/help/messages.md` with it. `python docs/_ext/messages_page.py` prints each message with its file and
line, after a `-` those that do not tell what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cpp_messages import CppMessages
from message import Message
from python_messages import PythonMessages

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent.parent
PLACE = "<!-- all messages -->"
_SUBJECTS = {
    "tfddl": "The package",
    "bench": "tfddl bench",
    "build": "Installing and compiling",
    "compat": "Programs that import horovod",
    "data": "Data",
    "doctor": "tfddl doctor",
    "elastic": "Going on after a loss",
    "flight": "tfddl analyze",
    "gradients": "Gradients",
    "keras": "Training with Keras",
    "launch": "tfddlrun",
    "ops": "Collectives",
    "report": "Tables and pictures",
    "runtime": "The job",
    "timeline": "tfddl timeline",
    "v1": "TF1 graphs and sessions",
    "core": "The engine",
    "base": "The engine",
    "api": "The engine",
    "gpu": "GPUs",
    "tensorflow": "Collectives in graphs",
    "transport": "Shared memory and MPI",
    "xla": "jit_compile=True",
}
_VERB = (
    r"accumulate|add|allow|ask|attach|bring|broadcast|build|call|cast|change|check|choose|close|compile|"
    r"compute|convert|create|define|delete|distribute|divide|do|drop|end|export|find|fix|freeze|give|import|"
    r"initialize|install|keep|leave|let|list|look|lower|make|move|multiply|name|open|pass|place|point|"
    r"put|read|reduce|remove|rename|replace|report|restart|retry|return|raise|run|say|see|select|send|set|shard|"
    r"show|shuffle|pad|split|start|switch|trace|train|try|tune|"
    r"turn|unset|update|use|wait|wrap|write"
)
# An imperative at the beginning of a sentence or clause, also behind its purpose or condition ("to send it, call").
_REMEDY = re.compile(
    r"(?:^|[.;:(] +|, (?=see)|; or "
    r"|(?:^|[.;:] )(?:to|if|for|on|in|here|where|with|then)\b[^.;:]{0,80}?[,:]? )"
    rf"(?P<verb>`?(?:{_VERB})\b(?![=(._]))"
    r"|[.;:(] +(?P<command>`?(?:pip|apt|tfddlrun|tfddl (?:analyze|build|doctor)) )",
    re.IGNORECASE,
)
_INTERNAL = "internal error: "
"""Begins the text of an error that only a fault of tfddl's own can cause."""


class Row(NamedTuple):
    """One message in the parts that a reader looks for."""

    kind: str
    fault: str
    received: str
    remedy: str


def messages() -> list[Message]:
    """All messages of the package and of the native library."""
    library = CppMessages(ROOT / "custom_ops", ignored=("tests", "benchmarks", "model"))
    found = PythonMessages(ROOT / "tfddl").collect() + library.collect()
    # A line about progress ends in dots.
    return [each for each in found if each.kind != "stderr" or not each.text.endswith("...")]


def without_remedy(found: Iterable[Message]) -> list[Message]:
    """The messages that do not tell what to do, which those about faults of tfddl's own and about wrong names need not."""
    return [
        each
        for each in found
        if not (
            _INTERNAL in each.text
            or _is_pythons(each.text)
            or _is_of_another(each.text)
            or _advice(each.text)
        )
    ]


def _is_of_another(text: str) -> bool:
    """Whether the text ends with that of another error of tfddl's, which tells what to do."""
    return bool(re.search(r": \{(?:refusal|what)\}\.?$", text))


def _is_pythons(text: str) -> bool:
    """Whether the text is the one that Python itself has for a name that is not there."""
    return bool(re.match(r"(?:module \S+ has no attribute|No module named|No such option) ", text))


def _advice(text: str) -> re.Match[str] | None:
    return _REMEDY.search(re.sub(r"\bReceived\b.*?(?:\. (?=[A-Z])|$)", "", text))


def row(message: Message) -> Row:
    """Splits a message into its parts."""
    text, received = message.text, ""
    if quoted := re.search(r"\bReceived:? (.*?)(?:\. (?=[A-Z])|\.?$)", text):
        received = quoted[1]
        text = (text[: quoted.start()] + text[quoted.end() :]).strip()
    advice = _advice(text)
    begin = max(advice.start("verb"), advice.start("command")) if advice else len(text)
    if advice and text[begin - 2 : begin] not in (". ", "; ", ": "):  # behind a purpose or a condition
        begin = advice.start() + len(advice[0]) - len(advice[0].lstrip(".;: "))
    fault, remedy = text[:begin].strip(), text[begin:].strip()
    values = dict.fromkeys(re.findall(r"\{[^{}]+\}", text))
    return Row(message.kind, fault, received or ", ".join(values), remedy)


def page() -> str:
    """The tables, as Markdown."""
    by_subject: dict[str, dict[Row, None]] = {}
    for message in messages():
        if _is_pythons(message.text):
            continue
        folder = Path(message.file).parts[1]
        subject = _SUBJECTS[folder if "." not in folder else "tfddl"]
        by_subject.setdefault(subject, {})[row(message)] = None
    lines = list[str]()
    for subject in dict.fromkeys(_SUBJECTS.values()):
        if subject in by_subject:
            lines += ["", f"## {subject}", "", "| message | received | what to do |", "|---|---|---|"]
            lines += [f"| {' | '.join(map(_cell, _cells(each)))} |" for each in by_subject[subject]]
    return "\n".join(lines) + "\n"


def _cells(of: Row) -> tuple[str, str, str]:
    kind = "" if of.kind in ("", "stderr", "error") else f"{of.kind}: "
    return kind + (of.fault or of.remedy), of.received, of.remedy if of.fault else ""


def _cell(text: str) -> str:
    """A text as inline code, with `<name>` for a value."""
    text = re.sub(r"\{([^{}]*)\}", r"<\1>", text).replace("|", "\\|")
    return f"`` {text} ``" if text else ""


def _fill(app: Sphinx, name: str, source: list[str]) -> None:
    if PLACE in source[0]:
        source[0] = source[0].replace(PLACE, page())


def setup(app: Sphinx) -> dict[str, bool]:
    """Runs when Sphinx reads the page."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    everything = messages()
    bare = set(without_remedy(everything))
    for each in everything:
        print(f"{'-' if each in bare else ' '} {each.kind}: {each.text} ({each.file}:{each.line})")
    print(f"{len(everything)} messages, {len(bare)} without a remedy")
