"""The cores of a host, shared out among its ranks: each rank computes with as many threads as its part has cores.

TensorFlow starts a thread for each core that the process may use, whatever else runs on the host. Ranks of one host would
together start several threads for each core.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from fractions import Fraction
from typing import Any

from tfddl.runtime.job import Job

_THREADS = "TF_NUM_INTRAOP_THREADS"


def part_of(local: Any) -> int:
    """The number of cores of this rank's part, 1 or more. All ranks of a host call it.

    A core that several ranks may use counts as a fraction of one for each.

    Args:
        local: A communicator of the ranks of this host.
    """
    mine = sorted(os.sched_getaffinity(0))
    users = Counter(core for cores in local.allgather(mine) for core in cores)
    return max(1, int(sum(Fraction(1, users[core]) for core in mine)))


def limit(job: Job) -> None:
    """Limits the threads of each TensorFlow operation, unless the program or its environment has done so.

    Without effect if TensorFlow has started already.
    """
    if job.cores >= len(os.sched_getaffinity(0)) or os.environ.get(_THREADS):
        return
    import tensorflow as tf

    if tf.config.threading.get_intra_op_parallelism_threads() == 0:
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(job.cores)
