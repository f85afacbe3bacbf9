"""Processor time of idle ranks, and of ranks that wait for a late rank.

    tfddlrun -np 2 python benchmarks/waiting.py [--json FILE]

*idle*: after a collective all ranks sleep for `--seconds`. *waits*: all ranks but the last call an allreduce, and the last
rank calls it `--late` seconds later. The two take turns. Columns:

- `s`: duration, median over rounds.
- `cpu ms`: processor time of all threads of the process, including the kernel's share, on the rank that took most; median
  and p90 over rounds. It comes from /proc/self/task/*/schedstat, since utime and stime count in steps of 10 ms.
- `of a core %` = cpu / s.
- `bar`: 0.5 % of a core for an idle engine; 50 ms for each second of waiting.
- `#wrong`: wrong sums, and waits that were shorter than the late rank was late.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import report
import tensorflow as tf
from mpi4py import MPI

import tfddl as hvd

IDLE_SHARE = 0.005
WAITING_SHARE = 0.05


def processor_seconds() -> float:
    """Processor time of all threads of this process, in seconds."""
    spent = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            spent += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
    return spent / 1e9


def meet() -> bool:
    """Runs one small allreduce of all ranks. Returns whether the result is right."""
    return bool(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="meet") == float(hvd.size()))


def idle(seconds: float) -> tuple[float, bool]:
    """Sleeps. Returns the seconds, and True."""
    time.sleep(seconds)
    return seconds, True


def wait(late: float) -> tuple[float, bool]:
    """Waits for the last rank. Returns the seconds (0 on the last rank), and whether the result and the wait were right."""
    if hvd.rank() == hvd.size() - 1:
        time.sleep(late)
        return 0.0, meet()
    start = time.perf_counter()
    right = meet()
    waited = time.perf_counter() - start
    return waited, right and waited > 0.9 * late


def measure(action: Callable[[float], tuple[float, bool]], argument: float) -> tuple[float, float, int]:
    """Runs one round. Returns the largest seconds and processor seconds of all ranks, and the number of wrong ranks."""
    right = meet()
    before = processor_seconds()
    seconds, good = action(argument)
    spent = processor_seconds() - before if seconds else 0.0
    world = MPI.COMM_WORLD
    wrong = world.allreduce(int(not (right and good)), MPI.SUM)
    return world.allreduce(seconds, MPI.MAX), world.allreduce(spent, MPI.MAX), wrong


def row(name: str, rounds: list[tuple[float, float, int]], share: float) -> dict[str, Any]:
    """A line of the table."""
    seconds = float(np.median([took for took, _, _ in rounds]))
    median, high = (float(np.percentile([spent for _, spent, _ in rounds], q)) for q in (50, 90))
    return {
        "what": name,
        "s": seconds,
        "cpu ms": median * 1e3,
        "p90 ms": high * 1e3,
        "of a core %": median / seconds * 100,
        "bar": f"{share:.1%} of a core" if name == "idle" else f"{share * 1e3:.0f} ms/s",
        "ok": "yes" if median / seconds <= share else "NO",
        "#wrong": sum(wrong for _, _, wrong in rounds),
    }


def main() -> None:
    """Measures both."""
    parser = report.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of idleness")
    parser.add_argument("--late", type=float, default=1.0, help="seconds by which the last rank is late")
    parser.set_defaults(rounds=5)
    arguments = parser.parse_args()
    hvd.init()
    if hvd.size() < 2:
        parser.error("one rank has nobody to wait for: start it with tfddlrun -np 2")
    ways = {"idle": (idle, arguments.seconds, IDLE_SHARE), "waits": (wait, arguments.late, WAITING_SHARE)}
    measured: dict[str, list[tuple[float, float, int]]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, (action, argument, _) in ways.items():
            measured[name].append(measure(action, argument))
    rows = [row(name, measured[name], share) for name, (_, _, share) in ways.items()]
    report.show(f"processor time, {hvd.size()} ranks", rows, arguments.json)
    report.fail_if_wrong(rows)


if __name__ == "__main__":
    main()
