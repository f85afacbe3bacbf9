"""The running job: init, ranks, process sets, the native library, and the engine's counters."""

import json

from tfddl.runtime import library
from tfddl.runtime.job import process


def stats() -> dict[str, int]:
    """The engine's counters since `init()` on this rank.

    Returns:
        A dict of `requests` submitted, `errors`, `votes` held, `empty_votes` after which nothing ran, `bytes_reduced`
        by allreduce, and requests `polled` for by the threads that submitted them. Empty before `init()`.
    """
    counters: dict[str, int] = json.loads(library.native().tfddl_stats())
    return counters


def request_count() -> int:
    """How many collectives this process has submitted since `init()`; 0 outside of a job."""
    return stats()["requests"] if process.job is not None else 0
