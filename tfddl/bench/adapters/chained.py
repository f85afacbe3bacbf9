"""tfddl: an allreduce of the result of an allreduce, which is in shared memory.

Minus the time of one allreduce, this is the time of an allreduce with its input in shared memory.
"""

from __future__ import annotations

from typing import Any

import tfddl as hvd
from tfddl.bench.adapters import Process, Ways, in_graph


def ways(process: Process) -> Ways:
    """Joins a job of tfddl."""
    in_graph.one_thread()
    hvd.init()

    def twice(t: Any, size: int) -> Any:
        for number in (1, 2):
            t = hvd.allreduce(t, op=hvd.Sum, name=f"bench.{size}.{number}")
        return t

    return lambda case: in_graph.around(
        lambda t: twice(t, case.bytes), case.values(process.rank), process.size * case.expected(process.rank)
    )
