"""Brings the traces of all ranks to one clock, and merges them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tfddl.flight.text import in_ranges
from tfddl.runtime.timeline import rank_path
from tfddl.timeline.trace import Request, Trace, TraceError, read

_ONE_RUN = 1e6
"""Microseconds. Members of a set note an agreement within a few milliseconds of each other, even on a busy machine."""

Collectives = dict[tuple[str, int], dict[int, Request]]


def read_job(path: Path) -> tuple[list[Trace], list[str]]:
    """Reads the files of all ranks.

    Args:
        path: The file of rank 0, beside the files of the other ranks.

    Returns:
        The traces in the order of the ranks, on the clock of rank 0; and a note for each missing file or part.

    Raises:
        OSError: The file of rank 0 cannot be read.
        TraceError: A file is no timeline, or belongs to another rank than its name says.
    """
    first = read(path)
    if first.rank != 0:
        raise TraceError(
            f"Give the file of rank 0, the others are found beside it. Received: '{path}' of rank {first.rank}"
        )
    traces, notes = [first], []
    files = {rank: file for rank, file in recordings(path).items() if 0 < rank < first.size}
    if missing := set(range(1, first.size)) - files.keys():
        have, name = "has" if len(missing) == 1 else "have", rank_path(path, min(missing))
        notes.append(f"{in_ranges(missing)} {have} no file: there is no '{name}'")
    for rank, other in files.items():
        trace = read(other)
        if trace.rank != rank:
            raise TraceError(
                f"'{other}' is not of rank {rank}: keep the names that the ranks gave their files. "
                f"Received: a file of rank {trace.rank}"
            )
        if trace.size != first.size:
            notes.append(f"rank {rank} is left out: '{other}' is of another run, on {trace.size} ranks")
            continue
        traces.append(trace)
    notes += _align(traces)
    for trace in traces:
        if not trace.whole:
            notes.append(f"rank {trace.rank}: the file has no end; the process was killed, or still runs")
        if trace.left_out:
            notes.append(
                f"rank {trace.rank}: {trace.left_out} collectives are not in the file, which could not keep up"
            )
    return traces, notes


def recordings(path: Path) -> dict[int, Path]:
    """The file of rank 0 and the files beside it that have the names of other ranks, by rank, ascending."""
    named = re.compile(rf"{re.escape(path.stem)}\.rank([1-9]\d*){re.escape(path.suffix)}")
    found = {int(match[1]): each for each in path.parent.iterdir() if (match := named.fullmatch(each.name))}
    return {0: path, **dict(sorted(found.items()))}


def collectives(traces: Sequence[Trace]) -> Collectives:
    """The requests of each collective that ran, by its process set and number, then by rank."""
    found: Collectives = defaultdict(dict)
    for trace in traces:
        for request in trace.requests:
            if request.ticket is not None:
                found[request.process_set, request.ticket][trace.rank] = request
    return found


def _align(traces: list[Trace]) -> list[str]:
    """Moves the ranks of other hosts to the clock of rank 0: all members of a set see an agreement at nearly the same time.

    Removes traces of an earlier run, whose files remain if a rank has not recorded this time.
    """
    reference, notes = traces[0], []
    for trace in traces[1:]:
        gaps = [
            both[reference.rank].agreed - both[trace.rank].agreed  # type: ignore[operator]
            for both in collectives([reference, trace]).values()
            if len(both) == 2
        ]
        one_clock = trace.clock == reference.clock
        if not gaps:
            if not one_clock:
                notes.append(
                    f"rank {trace.rank} has no collective in common with rank {reference.rank}: its clock is not aligned"
                )
            continue
        by = median(gaps)
        # On one clock another run shows in the times themselves, on two clocks in the differences between the gaps.
        apart = abs(by) if one_clock else median(abs(gap - by) for gap in gaps)
        if apart > _ONE_RUN:
            notes.append(
                f"rank {trace.rank} is left out: '{trace.path}' is of another run, its collectives are {apart / 1e6:.3g} s "
                f"from those of the same number in '{reference.path}'"
            )
            traces.remove(trace)
        elif not one_clock:
            _move(trace, by)
    return notes


def _move(trace: Trace, by: float) -> None:
    for request in trace.requests:
        request.shift(by)
    for event in trace.events:
        if "ts" in event:
            event["ts"] += by


def write_merged(traces: Sequence[Trace], path: Path) -> None:
    """Writes one trace of all ranks.

    Args:
        traces: From `read_job`.
        path: The output file, in the same format as the traces.
    """
    lines = ",\n".join(json.dumps(event) for trace in traces for event in trace.events)
    path.write_text(f"[\n{lines}\n]\n")
