"""Reads the records of a job: a file rank<N>.json for each rank, in one folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from tfddl.flight.text import in_ranges
from tfddl.runtime.agreement import first_few

VERSION = 1
# A record that was written before the end of hvd.init() does not know its job. The newest job gets it if the two times
# are within these seconds.
_NEAR = 600.0
_FILE = re.compile(r"rank(\d+)\.json")
_HOW = (
    "Pass the folder TFDDL_DUMP_DIR of the job, by default tfddl-dump in its current directory. Each rank writes "
    "rank<N>.json there when its job stalls, on the signal SIGUSR1 (kill -USR1 PID, of tfddlrun), and in "
    "hvd.write_flight_record()."
)


class RecordError(ValueError):
    """The folder or a file of it is not what the ranks write."""


class Operation(NamedTuple):
    """One collective on one rank. Times are in microseconds of the rank's clock; None for what has not happened."""

    number: int  # counts the submissions of this rank in the process set, from 1; 0 where it is unknown
    name: str
    signature: str
    bytes: int
    ticket: int | None
    submitted_us: int
    started_us: int | None
    ended_us: int | None
    failed: bool

    @property
    def state(self) -> str:
        """The last thing that happened to it."""
        if self.ended_us is not None:
            return "failed" if self.failed else "ended"
        if self.started_us is not None:
            return "started"
        return "submitted" if self.ticket is None else "agreed"

    @property
    def changed_us(self) -> int:
        """When it came into its state; for "agreed", when it was submitted."""
        times = (self.ended_us, self.started_us, self.submitted_us)
        return next(time for time in times if time is not None)


@dataclass(frozen=True)
class ProcessSet:
    """A process set, as a rank knows it."""

    id: int
    ranks: tuple[int, ...]

    @property
    def title(self) -> str:
        """The name that errors use; "all ranks" for set 0."""
        return "all ranks" if self.id == 0 else f"process set {self.id} {list(self.ranks)}"

    @property
    def attribute(self) -> str:
        """The set behind an operation's name: empty for set 0, else " of process set 1 [0, 2]"."""
        return "" if self.id == 0 else f" of {self.title}"


@dataclass
class Record:
    """The file of one rank."""

    path: Path
    job: str
    rank: int
    size: int
    host: str
    pid: int
    written: float
    now_us: int
    reason: str
    sets: dict[int, ProcessSet]
    operations: dict[int, list[Operation]]  # by process set, oldest first
    stacks: str

    def title(self, operation: Operation) -> str:
        """The name of an operation of this rank with its process set: "'key'", or "'key' of process set 1 [0, 2]"."""
        number = next(number for number, each in self.operations.items() if operation in each)
        known = self.sets.get(number, ProcessSet(number, ()))
        return f"'{operation.name}'{known.attribute}"

    @property
    def last(self) -> Operation | None:
        """The operation that this rank submitted last."""
        every = (each for operations in self.operations.values() for each in operations)
        return max(every, key=lambda each: each.submitted_us, default=None)

    def when(self, time_us: int) -> float:
        """The time of an event in Unix seconds, which other hosts count too."""
        return self.written - (self.now_us - time_us) / 1e6


@dataclass
class Job:
    """The records of one job."""

    folder: Path
    records: dict[int, Record]  # by rank, ascending
    size: int
    left_out: list[str]  # why files were left out

    @property
    def absent(self) -> list[int]:
        """The ranks without a record."""
        return [rank for rank in range(self.size) if rank not in self.records]

    @property
    def last_written(self) -> float:
        """When the newest record was written. All ages count back from there."""
        return max(record.written for record in self.records.values())

    def age(self, record: Record, time_us: int) -> float:
        """Seconds from an event to the newest record."""
        return self.last_written - record.when(time_us)


def read_job(folder: Path) -> Job:
    """Reads the newest job of a folder.

    Args:
        folder: Where the ranks wrote their records.

    Raises:
        RecordError: There is no record that can be read.
    """
    if not folder.is_dir():
        kind = "is not a folder" if folder.exists() else "does not exist"
        raise RecordError(f"The folder '{folder}' {kind}. {_HOW}")
    paths = sorted(path for path in folder.iterdir() if _FILE.fullmatch(path.name))
    if not paths:
        names = first_few(sorted(path.name for path in folder.iterdir())) or "an empty folder"
        raise RecordError(f"There is no rank<N>.json in '{folder}'. Received: {names}. {_HOW}")
    records, broken = [], []
    for path in paths:
        try:
            records.append(read(path))
        except (OSError, RecordError) as error:
            broken.append(str(error))
    if not records:
        raise RecordError(
            f"No record in '{folder}' can be read: delete them, and let the ranks write again. {first_few(broken)}"
        )
    chosen, others = _newest_job(records)
    left_out = [*broken, *_about_others(others)]
    size = max(record.size for record in chosen)
    size = max(size, *(record.rank + 1 for record in chosen))
    return Job(folder, {record.rank: record for record in sorted(chosen, key=_rank)}, size, left_out)


def read(path: Path) -> Record:
    """Reads the file of one rank.

    Raises:
        OSError: The file cannot be read.
        RecordError: The file is no record, or one of another version.
    """
    try:
        data = json.loads(path.read_bytes())
    except (RecursionError, ValueError) as error:
        raise RecordError(
            f"'{path}' is not the JSON of a flight record: {error}. Delete it, and let the rank write it again."
        ) from None
    version = data.get("version") if isinstance(data, dict) else None
    if version != VERSION:
        received = f"version {version!r}" if isinstance(data, dict) else type(data).__name__
        raise RecordError(
            f"'{path}' is not a flight record of version {VERSION}. Received: {received}. Read it with the tfddl that "
            "wrote it."
        )
    try:
        return _record(path, data)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        about = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise RecordError(
            f"'{path}' is not the flight record of a rank: move it out of the folder. Received: {about}"
        ) from None


_operation: Callable[[Any], tuple[Any, ...]] = itemgetter(*Operation._fields)


def _record(path: Path, data: dict[str, Any]) -> Record:
    now_us = int(data["now_us"])
    operations: dict[int, list[Operation]] = {}
    for entry in data.get("operations", ()):  # none before the end of hvd.init()
        operations.setdefault(entry["process_set"], []).append(Operation(*_operation(entry)))
    for entry in data.get("waiting", ()):
        known = operations.setdefault(entry["process_set"], [])
        submitted = now_us - int(entry["waited_us"])
        if all(submitted < each.submitted_us for each in known):  # the ring has dropped it
            known.insert(0, Operation(0, entry["name"], "", 0, None, submitted, None, None, False))
    sets = {
        int(each["id"]): ProcessSet(int(each["id"]), tuple(each["ranks"]))
        for each in data.get("process_sets", ())
    }
    return Record(
        path,
        str(data["job"]),
        int(data["rank"]),
        int(data["size"]),
        str(data["host"]),
        int(data["pid"]),
        float(data["written"]),
        now_us,
        str(data["reason"]),
        sets,
        operations,
        str(data["stacks"]),
    )


def _newest_job(records: list[Record]) -> tuple[list[Record], list[Record]]:
    """The records of the newest job, and the others."""
    newest = max(records, key=lambda record: record.written)
    if not newest.job:
        near = [each for each in records if each.job and newest.written - each.written < _NEAR]
        newest = max(near, key=lambda record: record.written, default=newest)

    def belongs(record: Record) -> bool:
        return record.job == newest.job or (not record.job and abs(newest.written - record.written) < _NEAR)

    return [each for each in records if belongs(each)], [each for each in records if not belongs(each)]


def _about_others(others: list[Record]) -> list[str]:
    """One line for each older job in the folder."""
    jobs: dict[str, list[int]] = {}
    for record in others:
        jobs.setdefault(record.job, []).append(record.rank)
    return [
        f"The records of {in_ranges(ranks)} are of an older job and are left out." for ranks in jobs.values()
    ]


def _rank(record: Record) -> int:
    return record.rank
