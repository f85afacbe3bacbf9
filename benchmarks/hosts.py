"""Collectives over several hosts: by hosts, without regard to hosts, and by MPI; and the bytes that hosts send and receive.

    python -m tfddl.bench.lab $(mktemp -d) 1gbit tfddlrun -np 4 -H hostA:2,hostB:2 python benchmarks/hosts.py

The lab's hosts are namespaces on this machine with a cable between them, so all ranks share its cores. The lab needs
`unshare`, `ip`, `tc` and unprivileged user namespaces. `1gbit` is the rate of a host in each direction; a rate of `-` sets
no limit, and `-,,4` makes four hosts without one. Real hosts work too: give `--interface`.

Columns, one line for each collective and size. tfddl/bench/rounds.py defines the medians. The two ways take turns: before
a block the job is started anew with TFDDL_HIERARCHICAL_ALLREDUCE=1 or 0.

- `bytes`: of the tensor that each rank gives; for an allgather, of its result.
- `by hosts us`: data enters each host once; in a reduction, the ranks of a host reduce first.
- `flat us`: each rank exchanges with each other rank.
- `gain` = flat / by hosts.
- `mpi4py us`: the same collective of `COMM_WORLD` between NumPy arrays. 0: MPI has no such type.
- `MB a host`: the most that a host sends in a call by hosts, for an allgather the most that one receives, by
  /proc/net/dev: with all headers, and the votes of the ranks. 0 without such an interface.
- `least MB`: what the data of that host takes at least. `LEAST` has the formulas.
- `#wrong`: elements of the checked results that were not exactly right, over all blocks and ranks.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import report

import tfddl as hvd
from tfddl.bench.adapters import Process, Way, mpi, tfddl
from tfddl.bench.case import Case, collective
from tfddl.bench.levels import measure_levels, restart
from tfddl.bench.rounds import block_of_all_ranks, measure

SIZES = (64 << 10, 1 << 20, 16 << 20)
WAYS = {"1": "by hosts us", "0": "flat us"}
LEAST: dict[str, Callable[[float, int, float], float]] = {
    "allreduce": lambda n, hosts, part: 2 * n * (hosts - 1) / hosts,
    "broadcast": lambda n, hosts, part: n,
    "allgather": lambda n, hosts, part: n * (1 - part),
    "reducescatter": lambda n, hosts, part: n * (1 - part),
    "alltoall": lambda n, hosts, part: n * hvd.size() * part * (1 - part),
}
"""Bytes of a host that has a part of all ranks: those that it sends, and for an allgather those that it receives. A host
sends what the others keep of its data, and each result enters a host. An allreduce is both (Patarasuk and Yuan 2009)."""


def traffic(interface: str) -> np.ndarray:
    """The bytes that this host has received and sent since it has the interface; zeros if there is none."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            fields = numbers.split()
            return np.array([int(fields[0]), int(fields[8])])
    return np.zeros(2, int)


def bytes_of_hosts(way: Way, operation: str, calls: int, interface: str) -> tuple[float, float]:
    """The bytes of a call on the host that has most, and what it needs at least, as a part of all ranks."""
    hvd.barrier()
    before = traffic(interface)
    for _ in range(calls):
        way.call()
    hvd.barrier()
    received, sent = (traffic(interface) - before) / calls
    mine = received if operation == "allgather" else sent
    return max(hvd.allgather_object((float(mine), hvd.local_size() / hvd.size())))


def row(case: Case, arguments: Any) -> dict[str, Any]:
    """Measures one line of the table."""
    process = Process(hvd.rank(), hvd.size(), Path(), ())
    way = tfddl.ways(process)(case)
    theirs = mpi.ways(process)(case)
    assert way is not None
    calls = max(3, min(50, (16 << 20) // case.bytes))
    peer = measure({"mpi4py": theirs}, rounds=arguments.rounds, calls=calls)["mpi4py"] if theirs else None

    timings = measure_levels(way, rounds=arguments.rounds, calls=calls)
    median = {WAYS[level]: timing.median for level, timing in timings.items()}
    restart("1")
    block_of_all_ranks(way, 1)
    found, part = bytes_of_hosts(way, case.operation, calls, arguments.interface)
    return {
        "collective": case.operation,
        "dtype": case.dtype,
        "bytes": case.bytes,
        **median,
        "gain": median["flat us"] / median["by hosts us"],
        "mpi4py us": peer.median if peer else 0,
        "MB a host": found / 1e6,
        "least MB": LEAST[case.operation](case.bytes, hvd.cross_size(), part) / 1e6,
        "#wrong": (peer.wrong if peer else 0) + sum(timing.wrong for timing in timings.values()),
    }


def main() -> None:
    """Measures every collective and size."""
    parser = report.parser(__doc__, SIZES)
    parser.add_argument(
        "--collectives", nargs="+", default=list(LEAST), choices=LEAST, help="which; all by default"
    )
    parser.add_argument("--dtypes", nargs="+", default=["float32"], help="of the tensors, by NumPy's names")
    parser.add_argument("--interface", default="cable", help="whose bytes count")
    arguments = parser.parse_args()
    hvd.init()
    rows = [
        row(collective(operation, size, dtype, hvd.size()), arguments)
        for operation in arguments.collectives
        for dtype in arguments.dtypes
        for size in arguments.sizes
    ]
    report.show(f"collectives, {hvd.cross_size()} hosts, {hvd.size()} ranks", rows, arguments.json)
    report.fail_if_wrong(rows)


if __name__ == "__main__":
    main()
