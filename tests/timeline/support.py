"""Timelines for tests: recorded or written by hand."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tfddl.runtime.timeline import rank_path
from tfddl.timeline.trace import Request, Trace, read


@contextmanager
def recorded(hvd: Any, path: Path, mark_cycles: bool = False) -> Iterator[None]:
    """Records the block on all ranks. All files are complete at its end."""
    hvd.barrier()
    hvd.start_timeline(str(path), mark_cycles)
    yield
    hvd.stop_timeline()
    hvd.barrier()


def mine(hvd: Any, path: Path) -> Trace:
    """Reads this rank's trace and checks it: valid JSON, finished requests, phases in order."""
    file = rank_path(path, hvd.rank())
    assert isinstance(json.loads(file.read_text()), list)
    trace = read(file)
    assert (trace.rank, trace.size, trace.whole, trace.left_out) == (hvd.rank(), hvd.size(), True, 0)
    for request in trace.requests:
        check_order(request)
    return trace


def check_order(request: Request) -> None:
    """Checks that a request went through all of its phases, in order."""
    if request.arguments["kind"] == "join" or request.error:
        assert request.started is None and request.submitted <= request.done, request
    else:
        assert request.submitted <= request.agreed <= request.started <= request.done, request


def by_name(trace: Trace) -> dict[str, list[Request]]:
    """The requests of each name, in the order of their submission."""
    found: dict[str, list[Request]] = {}
    for request in trace.requests:
        found.setdefault(request.name, []).append(request)
    return found


def write(path: Path, rank: int, size: int, requests: Sequence[dict[str, Any]], **header: Any) -> None:
    """Writes a file as the engine does.

    Args:
        path: That of rank 0.
        rank: Whose file.
        size: Of the job.
        requests: With name, ticket, submit, agreed and done (microseconds), and further arguments.
        header: What differs from a usual header.
    """
    about = {"rank": rank, "size": size, "host": f"host{rank}", "clock": f"clock{rank}"} | header
    events: list[dict[str, Any]] = [{"ph": "M", "name": "tfddl_timeline", "args": about}]
    for row, request in enumerate(requests, 1):
        arguments = {"kind": "allreduce", "bytes": 4000, "process_set": "all ranks"} | request.get("args", {})
        ticket = {"ticket": request["ticket"]}
        events += [
            {"ph": "B", "tid": row, "ts": request["submit"], "name": request["name"], "args": arguments},
            {"ph": "B", "tid": row, "ts": request["submit"], "name": "wait for peers"},
            {"ph": "E", "tid": row, "ts": request["agreed"]},
            {"ph": "B", "tid": row, "ts": request["agreed"], "name": "allreduce", "args": ticket},
            {"ph": "E", "tid": row, "ts": request["done"]},
            {"ph": "E", "tid": row, "ts": request["done"], "args": {}},
        ]
    events.append({"ph": "M", "name": "tfddl_end", "args": {"left_out": 0}})
    lines = ",\n".join(json.dumps({"pid": rank} | event) for event in events)
    rank_path(path, rank).write_text(f"[\n{lines}\n]\n")
