"""A worker of one adapter: `python -m tfddl.bench.worker MODULE DIRECTORY HOST:PORT...`, with one address for each worker.

The worker connects to the driver's socket, sends its rank and process id, and serves requests until the driver closes the
connection. A `Case` is prepared. A number runs a block of that many calls. None frees the case. A string as the answer is
an error. Between requests the worker sleeps, and leaves its core to the other adapters.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import traceback
from multiprocessing.connection import Client, Connection
from pathlib import Path

from tfddl.bench.adapters import Process, Way, Ways
from tfddl.bench.rounds import block
from tfddl.launch.rank_shim import RANK_VARIABLES

SOCKET = "driver"
"""Name of the driver's socket in the directory of the workers."""


def main(arguments: list[str]) -> None:
    """Joins the job and serves the driver."""
    module, directory, *addresses = arguments
    rank = int(next(os.environ[name] for name in RANK_VARIABLES if name in os.environ))
    process = Process(rank, len(addresses), Path(directory), tuple(addresses))
    pin(rank)
    with Client(str(process.directory / SOCKET), "AF_UNIX") as driver:
        driver.send((rank, os.getpid()))
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


def pin(rank: int) -> None:
    """Binds this process to one core. Ranks get different cores while there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


if __name__ == "__main__":
    main(sys.argv[1:])
