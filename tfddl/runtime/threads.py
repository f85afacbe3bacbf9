"""The cores of a host, shared out among its ranks: an operation of TensorFlow has as many threads as its rank has cores.

TensorFlow starts a thread for each core that the process may use, whatever else runs on the host. Ranks of one host would
together start several threads for each core.
"""

from __future__ import annotations

import os
from collections import Counter
from fractions import Fraction
from typing import Any

from tfddl.runtime.job import Job, process

# TensorFlow reads it at its start, and follows it where the program has set no number.
VARIABLE = "TF_NUM_INTRAOP_THREADS"


def part_of(local: Any) -> int:
    """The number of whole cores of this rank's part, 1 or more. All ranks of a host call it.

    A core that several ranks may use counts as a fraction of one for each.

    Args:
        local: A communicator of the ranks of this host.
    """
    mine = sorted(os.sched_getaffinity(0))
    users = Counter(core for cores in local.allgather(mine) for core in cores)
    return max(1, int(sum(Fraction(1, users[core]) for core in mine)))


def limit(job: Job) -> None:
    """Limits the threads of TensorFlow's operations, unless the environment has done so.

    Without effect if TensorFlow has started.
    """
    if os.environ.get(VARIABLE, process.threads) != process.threads:
        return
    os.environ.pop(VARIABLE, None)
    process.threads = ""
    if job.cores < len(os.sched_getaffinity(0)):
        process.threads = os.environ[VARIABLE] = str(job.cores)
