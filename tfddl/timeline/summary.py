"""The numbers about a job, from its traces. A line of a table is a dict. Times are in microseconds, except in tables."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from tfddl.runtime.agreement import first_few
from tfddl.timeline.align import collectives
from tfddl.timeline.trace import ALL_RANKS, Request, Trace

Row = dict[str, Any]


def ranks(traces: Sequence[Trace]) -> list[Row]:
    """A line for each rank.

    "s waiting" and "s moving" are the times in which at least one collective waited or moved. "s" is the time from the
    first submission to the last event.
    """
    return [
        {
            "rank": trace.rank,
            "host": trace.host,
            "collectives": len(trace.requests),
            "MB": sum(request.bytes for request in trace.requests) / 1e6,
            "s": (trace.last - trace.requests[0].submitted) / 1e6 if trace.requests else 0.0,
            "s waiting": covered(request.waiting for request in trace.requests) / 1e6,
            "s moving": covered(request.transfer for request in trace.requests) / 1e6,
            "errors": sum(bool(request.error) for request in trace.requests),
            "in flight": len(trace.open()),
        }
        for trace in traces
    ]


def lateness(traces: Sequence[Trace]) -> list[Row]:
    """A line for each rank: how often it was the last to submit, and for how long it was the only missing rank.

    Collectives that wait at the same time, such as the buckets of a step, count once in "s in all".
    """
    behind: dict[int, list[tuple[float, float]]] = defaultdict(list)
    took_part: Counter[int] = Counter()
    for (process_set, _), requests in collectives(traces).items():
        if len(requests) < 2 or len(requests) != len(_members(process_set, traces[0].size)):
            continue
        took_part.update(requests.keys())
        *_, before, last = sorted(requests.values(), key=lambda request: request.submitted)
        behind[last.rank].append((before.submitted, last.submitted))
    return [
        {
            "rank": trace.rank,
            "last": len(behind[trace.rank]),
            "of": took_part[trace.rank],
            "later by, median ms": _milliseconds([_length(each) for each in behind[trace.rank]], 0.5),
            "p90 ms": _milliseconds([_length(each) for each in behind[trace.rank]], 0.9),
            "s in all": covered(behind[trace.rank]) / 1e6,
        }
        for trace in traces
    ]


def exposed(traces: Sequence[Trace], top: int) -> list[Row]:
    """The time that communication adds to a step: from the last submission of the step to the last end.

    A step is one run of a graph, or one eager call. Steps with the same collectives are of one kind. After the last
    submission all gradients are computed, so the backward pass hides no more communication. Kinds without an allreduce, or
    with a single step, are no training steps.

    Args:
        traces: From `align.read_job`.
        top: Number of kinds, the slowest first.

    Returns:
        A line for each kind and rank.
    """
    return [line for by_rank in _training(traces)[:top] for line in _exposed_by_rank(by_rank)]


def conclusion(traces: Sequence[Trace]) -> str:
    """A sentence on the slowest kind of step, for the rank to whose steps communication adds most; empty without steps."""
    by_rank = next(iter(_training(traces)), {})
    lines = [line for line in _exposed_by_rank(by_rank) if line["step, median ms"]]
    if not lines:
        return ""
    share, worst = max(
        ((line["exposed, median ms"] / line["step, median ms"], line) for line in lines),
        key=lambda each: each[0],
    )
    found = by_rank[worst["rank"]]
    waits = sum(map(_exposed_wait, found)) > 0.5 * sum(map(_exposed, found))
    advice = (
        "no setting of tfddl makes the steps much faster"
        if share < 0.05
        else f"most of it {'waits for other ranks' if waits else 'moves data'}; docs/guides/tuning.md says what helps"
    )
    return (
        f"Communication adds at most {min(share, 1):.0%} to a step of {worst['step']} "
        f"({worst['exposed, median ms']:.3g} of {worst['step, median ms']:.3g} ms on rank {worst['rank']}): {advice}."
    )


def names(traces: Sequence[Trace], top: int) -> list[Row]:
    """A line for each of the `top` names that took most time.

    "waiting" is that of the rank that waited longest, since the last rank does not wait. "moving" likewise.
    """
    together = [list(requests.values()) for requests in collectives(traces).values()]
    failed = [[request] for trace in traces for request in trace.requests if request.ticket is None]
    found: dict[str, list[list[Request]]] = defaultdict(list)
    for requests in (*together, *failed):
        finished = [request for request in requests if request.done is not None]
        if finished:
            found[finished[0].title].append(finished)

    def longest(requests: Iterable[Request]) -> float:
        return max(_length((request.submitted, request.done)) for request in requests)

    took = {name: sum(map(longest, each)) for name, each in found.items()}
    lines = []
    for name in sorted(found, key=lambda name: -took[name])[:top]:
        each = found[name]
        lines.append(
            {
                "name": name,
                "kind": each[0][0].arguments["kind"],
                "times": len(each),
                "MB": median(max(request.bytes for request in one) for one in each) / 1e6,
                "waiting, median ms": _milliseconds(
                    [max(_length(request.waiting) for request in one) for one in each], 0.5
                ),
                "moving, median ms": _milliseconds(
                    [max(_length(request.transfer) for request in one) for one in each], 0.5
                ),
                "longest ms": max(map(longest, each)) / 1e3,
                "s in all": took[name] / 1e6,
            }
        )
    return lines


def unfinished(traces: Sequence[Trace]) -> list[str]:
    """A line for each rank with requests in flight at the end of its file: their ages, and the missing ranks."""
    waiting = {trace.rank: {(r.process_set, r.name) for r in trace.open()} for trace in traces}

    def said(trace: Trace, request: Request) -> str:
        seconds = f"{(trace.last - request.submitted) / 1e6:.3g} s"
        if request.agreed is not None:
            return f"'{request.title}' (moving for {seconds})"
        missing = [
            str(rank)
            for rank in _members(request.process_set, trace.size)
            if rank in waiting and (request.process_set, request.name) not in waiting[rank]
        ]
        who = f"; rank {', '.join(missing)} had not submitted it" if missing else ""
        return f"'{request.title}' (waiting for peers for {seconds}{who})"

    lines = []
    for trace in traces:
        texts = [said(trace, request) for request in trace.open()]
        if texts:
            lines.append(f"rank {trace.rank} ends with {first_few(texts)} in flight")
    return lines


def errors(traces: Sequence[Trace]) -> list[str]:
    """A line for each of the first three collectives that failed, and the number of others."""
    failed = [
        f"rank {trace.rank}: '{request.title}' failed: {request.error}"
        for trace in traces
        for request in trace.requests
        if request.error
    ]
    return [*failed[:3], *([f"{len(failed) - 3} more failed"] if len(failed) > 3 else [])]


def steps(requests: Sequence[Request]) -> Iterator[list[Request]]:
    """The finished requests of each run of a graph. A loop in a graph starts a new step when a name comes again."""
    open_steps: dict[tuple[str, str], list[Request]] = {}
    for request in requests:
        if "step" not in request.arguments or request.done is None:
            continue
        key = request.process_set, request.arguments["step"]
        step = open_steps.get(key)
        if step is None or any(other.name == request.name for other in step):
            if step:
                yield step
            step = open_steps[key] = []
        step.append(request)
    yield from open_steps.values()


def covered(intervals: Iterable[tuple[float, float] | None]) -> float:
    """The length of the union of the intervals."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(interval for interval in intervals if interval is not None):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def _training(traces: Sequence[Trace]) -> list[dict[int, list[list[Request]]]]:
    """The steps of each rank, for each kind of training step; the kind to which communication adds most comes first."""
    kinds: dict[tuple[str, ...], dict[int, list[list[Request]]]] = defaultdict(lambda: defaultdict(list))
    for trace in traces:
        for step in steps(trace.requests):
            kinds[tuple(sorted(request.title for request in step))][trace.rank].append(step)
    trained = [by_rank for by_rank in kinds.values() if any(map(_trains, by_rank.values()))]
    return sorted(
        trained, key=lambda by_rank: -sum(_exposed(step) for found in by_rank.values() for step in found)
    )


def _exposed_by_rank(by_rank: dict[int, list[list[Request]]]) -> list[Row]:
    """The lines of `exposed` for one kind of step."""
    lines = []
    for rank, found in sorted(by_rank.items()):
        times = sorted(max(request.submitted for request in step) for step in found)
        costs = [_exposed(step) for step in found]
        lines.append(
            {
                "step": _title(found[0]),
                "rank": rank,
                "steps": len(found),
                "step, median ms": _milliseconds([b - a for a, b in itertools.pairwise(times)], 0.5),
                "exposed, median ms": _milliseconds(costs, 0.5),
                "p90 ms": _milliseconds(costs, 0.9),
                "s in all": sum(costs) / 1e6,
            }
        )
    return lines


def _trains(steps_of_a_kind: Sequence[Sequence[Request]]) -> bool:
    kinds = {request.arguments["kind"] for request in steps_of_a_kind[0]}
    return len(steps_of_a_kind) > 1 and "allreduce" in kinds


def _exposed(step: Sequence[Request]) -> float:
    return max(request.done or 0.0 for request in step) - max(request.submitted for request in step)


def _exposed_wait(step: Sequence[Request]) -> float:
    """The part of the exposed time in which a collective of the step waits for other ranks."""
    last = max(request.submitted for request in step)
    return max(0.0, max(request.agreed or 0.0 for request in step) - last)


def _title(step: Sequence[Request]) -> str:
    """The name of the largest collective, without its bucket number."""
    largest = max(step, key=lambda request: request.bytes)
    title = largest.title.replace(largest.name, largest.name.partition("#")[0])
    return title if len(step) == 1 else f"{title} ({len(step)} collectives)"


def _members(process_set: str, size: int) -> Sequence[int]:
    """The ranks of a process set by its text: "all ranks", or "process set 1 [0, 2]"."""
    if process_set == ALL_RANKS:
        return range(size)
    return list(json.loads(process_set[process_set.index("[") :]))


def _length(interval: tuple[float, float | None] | None) -> float:
    return 0.0 if interval is None or interval[1] is None else interval[1] - interval[0]


def _milliseconds(times: Sequence[float], quantile: float) -> float | None:
    """A quantile of times in microseconds, as milliseconds. None without times."""
    if not times:
        return None
    if quantile == 0.5:
        return median(times) / 1e3
    return sorted(times)[min(len(times) - 1, int(quantile * len(times)))] / 1e3
