"""The Python blocks of a page, and the output that the page shows below them.

A comment before a block, which no reader sees, says how the block runs:

    <!-- run: 2 ranks -->              in a job of 2 ranks that other blocks use too
    <!-- run: own job of 2 ranks -->   in new processes
    <!-- run: program -->              in a plain Python, as it starts jobs itself
    <!-- run: never: needs GPUs -->    nowhere, and why
    <!-- run: continued -->            together with the block before it
                                       (before a block of `diff`: the program with its changes)
    <!-- prints -->                    the next indented block is the output, line by line in any order
    <!-- prints, other numbers -->     the same, whatever the numbers

`slow` at the end of a `run` comment leaves a block to full runs. Lines of Python below `run: ...` in the comment run before
the block: the data and the model that a page does not repeat.
"""

import dataclasses
import re
from pathlib import Path

_PIECE = re.compile(
    r"<!-- run: (?P<how>[^\n]*?)(?P<before>\n.*?)? ?-->"
    r"|```(?:python|(?P<diff>diff))\n(?P<code>.*?)^```"
    r"|<!-- prints(?P<numbers>, other numbers)? -->\n+(?P<output>(?:    [^\n]*\n|\n(?=    ))+)",
    re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r"\d[\d.,e-]*")


@dataclasses.dataclass
class Block:
    """A piece of a page that runs at once: one block, or several of which all but the first are `continued`.

    Attributes:
        page: Path of the page in the repository.
        line: Where the first block begins.
        how: What the comment says.
        source: The code, each line where it stands on the page.
        prints: Lines of output that the page shows.
        other_numbers: Whether numbers may differ from those on the page.
    """

    page: str
    line: int
    how: str
    source: str
    prints: list[str] = dataclasses.field(default_factory=list)
    other_numbers: bool = False

    @property
    def ranks(self) -> int:
        """The size of the job; 0 for a program that starts jobs itself."""
        number = re.search(r"\d+ ranks", self.how)
        return int(number.group().split()[0]) if number else 0

    @property
    def slow(self) -> bool:
        return self.how.endswith("slow")

    @property
    def is_own_job(self) -> bool:
        return self.how.startswith(("own job", "program"))

    @property
    def never(self) -> str:
        """Why the block does not run; empty for others."""
        return self.how.removeprefix("never: ") if self.how.startswith("never") else ""

    def missing(self, output: str) -> list[str]:
        """Lines that the page shows and the job has not printed."""
        seen = {self._comparable(line) for line in output.splitlines()}
        return [line for line in self.prints if self._comparable(line) not in seen]

    def _comparable(self, line: str) -> str:
        return _NUMBER.sub("#", line).strip() if self.other_numbers else line.strip()


def blocks_of(root: Path, page: str) -> list[Block]:
    """The blocks of a page in their order."""
    text = (root / page).read_text()
    blocks: list[Block] = []
    how, before = None, ""
    for piece in _PIECE.finditer(text):
        line = text[: piece.start()].count("\n") + 1
        if piece["how"] is not None:
            how, before = piece["how"], _at(line, piece["before"] or "")
        elif piece["code"] is not None:
            if piece["diff"] and not how:
                continue  # it shows what changes, not a whole program
            code = _at(line + 1, _changed(piece["code"]) if piece["diff"] else piece["code"])
            if how == "continued":
                blocks[-1].source = _joined(blocks[-1].source, code)
            else:
                blocks.append(Block(page, line, how or "", _joined(before, code)))
            how, before = None, ""
        else:
            lines = [line.strip() for line in piece["output"].splitlines()]
            blocks[-1].prints += [line for line in lines if line and line != "..." and line[:2] != "$ "]
            blocks[-1].other_numbers |= piece["numbers"] is not None
    return blocks


def _at(line: int, code: str) -> str:
    """Code that begins on a line: empty lines above it."""
    return "\n" * (line - 1) + code


def _changed(diff: str) -> str:
    """The program after a diff; where a line goes, the rest moves up."""
    return "".join(line[1:] or line for line in diff.splitlines(keepends=True) if line[:1] != "-")


def _joined(first: str, second: str) -> str:
    """Two pieces, each with its lines where they stand on the page."""
    lines = first.splitlines()
    return "\n".join(lines + second.splitlines()[len(lines) :]) + "\n"
