"""A worker of one adapter: `python -m tfddl.bench.worker MODULE [restless]`.

The worker connects to the driver, sends its rank and a free port, gets its `Process` and the number of its core, and serves
requests until the driver closes the connection. A `Case` is prepared. A number runs a block of that many calls. None frees
the case. A string as the answer is an error. Between requests the worker sleeps, and leaves its core to the other adapters.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import traceback
from multiprocessing.connection import Connection

from tfddl.bench import channel
from tfddl.bench.adapters import Way, Ways
from tfddl.bench.rounds import block
from tfddl.launch import rank_shim


def main(arguments: list[str]) -> None:
    """Joins the job and serves the driver."""
    module, *restless = arguments
    rank = rank_shim.rank()
    settings = json.loads(os.environ[channel.VARIABLE])
    if restless:
        channel.start_keeper(settings, (rank, None))
    with channel.connect(settings, (rank, channel.free_port())) as driver:
        process, core = driver.recv()
        pin(core)
        try:
            _serve(driver, importlib.import_module(module).ways(process))
        except Exception as error:
            traceback.print_exc()
            driver.send(f"{type(error).__name__}: {error}")
            with contextlib.suppress(EOFError):
                driver.recv()  # ends when the driver has read the error; an earlier end would end the other ranks
            sys.exit(1)


def _serve(driver: Connection, ways: Ways) -> None:
    driver.send(True)
    way: Way | None = None
    while True:
        try:
            request = driver.recv()
        except EOFError:
            return
        if isinstance(request, int) and way is not None:
            driver.send(block(way, request))
            continue
        way = None
        gc.collect()  # a traced function refers to itself
        if request is not None:
            way = ways(request)
        driver.send(way is not None)


def pin(number: int) -> None:
    """Binds this process to one core. Processes with different numbers get different cores while there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


if __name__ == "__main__":
    main(sys.argv[1:])
