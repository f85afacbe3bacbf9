"""Compares runs of `tfddl bench` with tfddl's own targets ("bars").

    tfddl bench allreduce -np 2 --sizes 4B,4K,64K,1M,16M,64M,256M --json allreduce.json
    tfddl bench gradients -np 2 --json gradients.json
    tfddl bench training -np 2 --json training.json
    python benchmarks/bars.py allreduce.json gradients.json training.json

Every bar is a ratio of medians of one run. `is` must be at most `bar`. Base is the op that does nothing, floor the time
of the copies that no allreduce can avoid, compute the training step without communication (docs/performance.md). A bar
is skipped if the run lacks one of its numbers.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfddl.bench import results
from tfddl.bench.gradient_sets import MODELS

Times = dict[str, float]


def of_allreduce(size: int, us: Times) -> Iterator[tuple[str, float, float]]:
    """Bars of an allreduce of `size` bytes: ratio, is, bar."""
    excess = us["tfddl"] - us["nothing"]
    if size <= 64 << 10:
        if "futex" in us:
            yield "(tfddl - base) / futex ping-pong", excess / us["futex"], 4.0
        if "horovod" in us:
            yield "(tfddl - base) / Horovod", excess / us["horovod"], 0.1
    elif size <= 1 << 20 and "mpi4py" in us:
        yield "(tfddl - base) / mpi4py", excess / us["mpi4py"], 0.6
    elif "mpi4py" in us:
        yield "tfddl / mpi4py", us["tfddl"] / us["mpi4py"], 0.55


def of_gradients(name: str, us: Times) -> Iterator[tuple[str, float, float]]:
    """Bars of a set of gradients: ratio, is, bar."""
    excess = us["tfddl"] - us["nothing"]
    if name == "1000x1KB":
        if "horovod" in us:
            yield "(tfddl - base) / (Horovod - base)", excess / (us["horovod"] - us["nothing"]), 0.25
        return
    yield "(tfddl - base) / floor", excess / us["floor"], 1.3
    if "horovod" in us:
        yield "tfddl / Horovod", us["tfddl"] / us["horovod"], {"resnet50": 1 / 3, "vgg16": 1 / 2}[name]


def of_training(us: Times) -> Iterator[tuple[str, float, float]]:
    """Bars of a training step: ratio, is, bar."""
    for floor in ("floor", "floor after a step"):
        if floor in us:
            yield f"step / (compute + 1.3 {floor})", us["tfddl"] / (us["nothing"] + 1.3 * us[floor]), 1.0


def judged(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A line for each bar that the rows of a run allow."""
    cases: dict[Any, Times] = {}
    for row in rows:
        cases.setdefault(row.get("set") or row["bytes"], {})[row["name"]] = row["us"]
    for case, us in cases.items():
        if case in MODELS:
            bars = of_training(us)
        else:
            bars = of_gradients(case, us) if isinstance(case, str) else of_allreduce(case, us)
        for ratio, is_, bar in bars:
            label = case if isinstance(case, str) else results.human(case)
            yield {"case": label, "what": ratio, "is": is_, "bar": bar, "ok": "yes" if is_ <= bar else "NO"}


def main() -> None:
    """Prints all bars."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "files", nargs="+", type=Path, help="JSON of tfddl bench allreduce, gradients, training"
    )
    lines = [
        line for path in parser.parse_args().files for line in judged(json.loads(path.read_text())["rows"])
    ]
    results.show("bars", lines)


if __name__ == "__main__":
    main()
