"""Records for tests, as the ranks write them: each test says what each rank did."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECOND = 1_000_000
NOW_US = 1000 * SECOND
"""The clock of every rank when it writes its record."""
WRITTEN = 1_700_000_000.0

SIGNATURE = "collective=allreduce|op=Sum|prescale_factor=1.0|postscale_factor=1.0|tensor="

STACK = """\
Thread 0x00007f83c06fc6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f83c126ab80 (most recent call first):
{frames}
"""


@dataclass
class Rank:
    """What one rank did. Its methods return the rank, so that calls can follow each other."""

    rank: int
    size: int
    file: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.file = {
            "version": 1,
            "job": "abc",
            "rank": self.rank,
            "size": self.size,
            "host": f"node{self.rank // 8}",
            "pid": 100 + self.rank,
            "written": WRITTEN,
            "now_us": NOW_US,
            "reason": "signal SIGUSR1",
            "process_sets": [{"id": 0, "ranks": list(range(self.size)), "member": True}],
            "operations": [],
            "waiting": [],
            "stacks": "",
        } | self.file

    def did(self, name: str, ticket: int | None = None, ago: float = 20.0, **more: Any) -> "Rank":
        """An operation that was submitted `ago` seconds before the record; with a ticket it ended 0.1 s later."""
        submitted = int(NOW_US - ago * SECOND)
        number = 1 + sum(
            each["process_set"] == more.get("process_set", 0) for each in self.file["operations"]
        )
        times = {"started_us": None, "ended_us": None}
        if ticket is not None:
            times = {"started_us": submitted + SECOND // 20, "ended_us": submitted + SECOND // 10}
        tensor = more.pop("tensor", "float32 [1000]")
        about = {
            "process_set": 0,
            "number": number,
            "name": name,
            "signature": SIGNATURE + tensor,
            "bytes": 4000,
        }
        self.file["operations"].append(
            about | {"ticket": ticket, "submitted_us": submitted, "failed": False} | times | more
        )
        return self

    def at(self, *frames: tuple[str, int, str]) -> "Rank":
        """The main thread's calls, the innermost one first: path, line, function."""
        lines = "\n".join(f'  File "{path}", line {line} in {function}' for path, line, function in frames)
        self.file["stacks"] = STACK.format(frames=lines)
        return self

    def sets(self, *sets: list[int]) -> "Rank":
        """Process sets besides that of all ranks."""
        self.file["process_sets"] += [
            {"id": number, "ranks": ranks, "member": self.rank in ranks}
            for number, ranks in enumerate(sets, 1)
        ]
        return self


def ranks(size: int, **file: Any) -> list[Rank]:
    """Ranks that have done nothing yet."""
    return [Rank(rank, size, dict(file)) for rank in range(size)]


def after_loss(size: int, **file) -> list[Rank]:
    """Ranks that have all done 'loss' 13 s ago."""
    return [each.did("loss", 57, ago=13.1) for each in ranks(size, **file)]


def write(folder: Path, made: list[Rank]) -> Path:
    """Writes a file for each rank, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in made:
        (folder / f"rank{each.rank}.json").write_text(json.dumps(each.file))
    return folder
