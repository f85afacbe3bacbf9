"""Reads the trace of one rank."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]

_HEADER, _END = "tfddl_timeline", "tfddl_end"
_QUEUE = "queue"
_MOST_RANKS = 1_000_000  # the names of missing files take memory for each rank
ALL_RANKS = "all ranks"


class TraceError(ValueError):
    """The file is no timeline of tfddl."""


@dataclass
class Request:
    """One collective on one rank. Times are in microseconds, and None for phases that are not in the file."""

    rank: int
    name: str
    arguments: dict[str, Any]
    submitted: float
    agreed: float | None = None
    started: float | None = None
    done: float | None = None
    ticket: int | None = None  # equal on all members of the process set
    error: str = ""

    @property
    def process_set(self) -> str:
        """The process set as text."""
        return str(self.arguments["process_set"])

    @property
    def title(self) -> str:
        """The name, and the process set unless it has all ranks."""
        return self.name if self.process_set == ALL_RANKS else f"{self.name} of {self.process_set}"

    @property
    def bytes(self) -> int:
        """Bytes of this rank's input."""
        return int(self.arguments.get("bytes", 0))

    @property
    def waiting(self) -> tuple[float, float] | None:
        """From the submission to the agreement with the peers, or to the failure."""
        end = self.agreed if self.agreed is not None else self.done
        return None if end is None else (self.submitted, end)

    @property
    def transfer(self) -> tuple[float, float] | None:
        """From the start of the data transfer to its end."""
        return None if self.started is None or self.done is None else (self.started, self.done)

    def shift(self, by: float) -> None:
        """Adds `by` microseconds to all times."""
        self.submitted += by
        for moment in ("agreed", "started", "done"):
            if getattr(self, moment) is not None:
                setattr(self, moment, getattr(self, moment) + by)


@dataclass
class Trace:
    """The recording of one rank."""

    path: Path
    rank: int
    size: int
    host: str
    clock: str  # equal on ranks that share a clock
    events: list[Event]
    requests: list[Request] = field(default_factory=list)
    left_out: int = 0
    whole: bool = False

    @property
    def last(self) -> float:
        """The time of the last event, in microseconds."""
        return max((event["ts"] for event in self.events if "ts" in event), default=0.0)

    def open(self) -> list[Request]:
        """The requests in flight at the end of the file."""
        return [request for request in self.requests if request.done is None]


def read(path: Path) -> Trace:
    """Reads the file of one rank. The file may lack its end, if the process was killed.

    Args:
        path: The file.

    Raises:
        OSError: The file cannot be read.
        TraceError: The file is no timeline, or a merged one of all ranks.
    """
    events = list(_events(path))
    headers = [event.get("args") or {} for event in events if event.get("name") == _HEADER]
    if len(headers) != 1:
        content = f"{len(headers)} ranks in one file" if headers else "another file"
        raise TraceError(
            f"'{path}' is not the timeline of one rank: pass a file that hvd.start_timeline wrote. Received: {content}"
        )
    try:
        return _trace(path, headers[0], events)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        about = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise TraceError(f"'{path}' is damaged: let the job record it again. Received: {about}") from None


def _trace(path: Path, header: dict[str, Any], events: list[Event]) -> Trace:
    trace = Trace(
        path, int(header["rank"]), int(header["size"]), str(header["host"]), str(header["clock"]), events
    )
    if not 0 <= trace.rank < trace.size <= _MOST_RANKS:
        raise ValueError(f"rank {trace.rank} of {trace.size}")
    for event in events:
        if event["ph"] != "M" and not math.isfinite(event["ts"]):
            raise ValueError(f"the time {event['ts']}")
        if event.get("name") == _END:
            trace.whole = True
            trace.left_out = event["args"]["left_out"]
        elif event.get("name") == "left out":
            trace.left_out = event["args"]["left_out"]
    trace.requests = _requests(trace.rank, events)
    return trace


def _events(path: Path) -> Iterator[Event]:
    lines = path.read_text(errors="replace").split("\n")
    if lines[0] != "[":
        begins = f"a file that begins with {lines[0][:40]!r}" if any(lines) else "an empty file"
        raise TraceError(
            f"'{path}' is not a timeline of tfddl: pass a file of hvd.start_timeline. Received: {begins}"
        )
    for number, line in enumerate(lines[1:], 2):
        text = line.rstrip().removesuffix(",")
        if text in ("", "]"):
            continue
        try:
            event = json.loads(text)
            if not isinstance(event, dict):
                raise ValueError
            yield event
        except (RecursionError, ValueError):
            if number == len(lines):  # cut off when the process was killed
                return
            raise TraceError(
                f"'{path}' is not a timeline of tfddl, or two jobs have written into it: pass a file of "
                f"hvd.start_timeline, and give each job a file of its own. Received: line {number}: {line[:40]!r}"
            ) from None


def _requests(rank: int, events: list[Event]) -> list[Request]:
    """The requests of a file, in the order of submission. A row has one request at a time."""
    requests: list[Request] = []
    rows: dict[int, Request] = {}
    depth: dict[int, int] = {}
    for event in events:
        row, arguments = event.get("tid", 0), event.get("args", {})
        if event["ph"] == "B":
            depth[row] = depth.get(row, 0) + 1
            if depth[row] == 1:
                for part in ("kind", "process_set"):
                    if part not in arguments:
                        raise KeyError(part)
                rows[row] = Request(rank, str(event["name"]), arguments, event["ts"])
                requests.append(rows[row])
            else:
                _enter(rows[row], event)
        elif event["ph"] == "E" and depth.get(row):
            depth[row] -= 1
            if depth[row] == 0:
                rows[row].done = event["ts"]
                rows[row].error = arguments.get("error", "")
    return requests


def _enter(request: Request, event: Event) -> None:
    """Notes the phase that begins. The first phase, from the submission on, is the wait for peers."""
    if "ticket" in event.get("args", {}):
        request.agreed, request.ticket = event["ts"], event["args"]["ticket"]
    if request.agreed is not None and event["name"] != _QUEUE:
        request.started = event["ts"]
