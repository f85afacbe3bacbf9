"""An allreduce over several hosts with several ranks each: hierarchical (three steps), and by slices of all ranks.

    python tests/hosts/lab.py $(mktemp -d) 1gbit tfddlrun -np 4 -H hostA:2,hostB:2 python benchmarks/hosts.py

The lab's hosts are namespaces on this machine with a cable between them, so four ranks share its cores. The lab needs
`unshare`, `ip`, `tc` and unprivileged user namespaces. The cable carries 1 Gbit/s in each direction; a rate of `-` sets no
limit. Real hosts work too.

Columns, one line for each size. tfddl/bench/rounds.py defines the medians. The two ways take turns: before a block the job
is started anew with TFDDL_HIERARCHICAL_ALLREDUCE=1 or 0.

- `bytes`: size of the float32 tensor that each rank gives.
- `three steps us`: reduced inside each host, then across hosts by slices, then broadcast inside. Each of H hosts sends
  2 (H - 1) / H n bytes.
- `by slices us`: each rank owns a slice and receives it from all other ranks. A host sends as many times more as it has
  ranks.
- `gain` = by slices / three steps.
- `mpi4py us`: `COMM_WORLD.Allreduce` of the same data between NumPy arrays.
- `GB/s` = bytes / three steps. It cannot exceed the rate of the cable.
- `#wrong`: elements of the checked results that were not exactly right, over all blocks and ranks.
"""

import os
from functools import partial
from typing import Any

import numpy as np
import report
from mpi4py import MPI

import tfddl as hvd
from tfddl.bench.adapters import Way
from tfddl.bench.adapters.in_graph import around
from tfddl.bench.case import Case, count_wrong
from tfddl.bench.rounds import block_of_all_ranks, interleave, measure

SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20)
WAYS = {"1": "three steps us", "0": "by slices us"}


def restart(hierarchical: str) -> None:
    """Starts the job anew, with or without the hierarchical allreduce."""
    hvd.shutdown()
    os.environ["TFDDL_HIERARCHICAL_ALLREDUCE"] = hierarchical
    hvd.init()


def row(size: int, rounds: int) -> dict[str, Any]:
    """Measures one line of the table."""
    case = Case("allreduce", hvd.size(), size // 4)
    ranks = [case.values(rank) for rank in range(hvd.size())]
    x, expected, result = ranks[hvd.rank()], sum(ranks), np.empty_like(ranks[0])
    calls = max(3, min(50, (16 << 20) // size))
    ours = around(lambda t: hvd.allreduce(t, op=hvd.Sum, name=f"bench.{size}"), x, expected)
    theirs = Way(lambda: MPI.COMM_WORLD.Allreduce(x, result), lambda: count_wrong(result, expected))
    mpi = measure({"mpi4py": theirs}, rounds=rounds, calls=calls)["mpi4py"]

    def restarted(hierarchical: str) -> tuple[float, int]:
        restart(hierarchical)
        block_of_all_ranks(ours, calls)  # warms up
        return block_of_all_ranks(ours, calls)

    timings = interleave({way: partial(restarted, value) for value, way in WAYS.items()}, rounds)
    median = {way: timing.median for way, timing in timings.items()}
    return {
        "bytes": size,
        **median,
        "gain": median["by slices us"] / median["three steps us"],
        "mpi4py us": mpi.median,
        "GB/s": size / median["three steps us"] / 1e3,
        "#wrong": mpi.wrong + sum(timing.wrong for timing in timings.values()),
    }


def main() -> None:
    """Measures every size."""
    arguments = report.parser(__doc__, SIZES).parse_args()
    hvd.init()
    rows = [row(size, arguments.rounds) for size in arguments.sizes]
    report.show(f"allreduce float32 Sum, {hvd.cross_size()} hosts, {hvd.size()} ranks", rows, arguments.json)
    report.fail_if_wrong(rows)


if __name__ == "__main__":
    main()
