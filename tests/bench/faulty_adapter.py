"""An adapter that fails on purpose. The variable `FAULTY` names the failure."""

import os
import time

import numpy as np

from tfddl.bench.adapters import Process, Way, Ways
from tfddl.bench.case import Case, count_wrong


def ways(process: Process) -> Ways:
    """Fails at its start, or from its second block on."""
    how = os.environ["FAULTY"]
    if how == "raises at the start" and process.rank == process.size - 1:
        raise ValueError("on purpose")

    def way(case: Case) -> Way:
        result = np.zeros(case.count)
        calls = 0

        def call() -> None:
            nonlocal calls
            calls += 1
            if process.rank < process.size - 1 or calls < 8:
                return
            if how == "is wrong":
                result[:2] = 1
            elif how == "dies":
                os._exit(3)
            elif how == "raises":
                raise ValueError("on purpose")
            elif how == "hangs":
                time.sleep(1000)

        return Way(call, lambda: count_wrong(result, 0.0))

    return way
