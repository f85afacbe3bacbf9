"""The entries of the gallery: places of the page between `<!-- gallery: ... -->` and `<!-- end -->`.

<!-- gallery: mnist.py: loss, val_accuracy -->     an example, and the metrics that its picture shows
<!-- gallery: timeline of embedding.py -->         its timeline on two processes
<!-- gallery: scaling -->                          times of all examples
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packages.gallery.runs import ROOT

PAGE = ROOT / "docs" / "guides" / "examples.md"
PICTURES = ROOT / "docs" / "gallery"
SCALING = "scaling"
_ENTRY = re.compile(
    r"(?P<begin><!-- gallery: (?:timeline of (?P<timeline>\S+)|(?P<name>[^\s:]+)(?:: (?P<metrics>[^\n]+?))?) -->\n)"
    r"(?P<text>.*?)(?P<end><!-- end -->)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Entry:
    """One place of the page.

    Attributes:
        example: string, a file of `examples/`; "scaling" for the times of all.
        metrics: tuple of strings, as the example prints them.
        timeline: bool, whether it shows the timeline instead of curves.
        text: string, what stands there now.
    """

    example: str
    metrics: tuple[str, ...]
    timeline: bool
    text: str

    @property
    def picture(self) -> Path:
        name = (
            f"timeline-{Path(self.example).stem}.png" if self.timeline else f"{Path(self.example).stem}.svg"
        )
        return PICTURES / name


def read(page: str) -> list[Entry]:
    """The entries of a page in their order."""
    return [_entry(match) for match in _ENTRY.finditer(page)]


def rewrite(page: str, write: Callable[[Entry], str | None]) -> str:
    """The page with new texts.

    Args:
        page: the text of the page.
        write: returns the new text of an entry, or None if the old text stays.
    """

    def replace(match: re.Match[str]) -> str:
        text = write(_entry(match))
        if text is None:
            return match[0]
        body = text.strip("\n")  # the first line keeps its indentation
        return f"{match['begin']}\n{body}\n\n{match['end']}"

    return _ENTRY.sub(replace, page)


def _entry(match: re.Match[str]) -> Entry:
    metrics = tuple(metric.strip() for metric in (match["metrics"] or "").split(",") if metric.strip())
    return Entry(
        match["timeline"] or match["name"], metrics, bool(match["timeline"]), match["text"].strip("\n")
    )
