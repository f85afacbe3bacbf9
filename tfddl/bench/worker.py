"""A process of a measured job: `python -m tfddl.bench.worker MODULE DIRECTORY PORT...`, one port for each process.

It connects to the driver's socket, says its rank and process, and answers what the driver asks until that hangs up: a
`Case` is made ready, a number is that many calls of it, None drops it. A string as the answer is an error. It sleeps
meanwhile, and leaves its core to the jobs whose turn it is.
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
"""Of the driver, in the job's directory."""


def main(arguments: list[str]) -> None:
    """Joins the job and serves the driver."""
    module, directory, *ports = arguments
    rank = int(next(os.environ[name] for name in RANK_VARIABLES if name in os.environ))
    process = Process(rank, len(ports), Path(directory), tuple(map(int, ports)))
    pin(rank)
    with Client(str(process.directory / SOCKET), "AF_UNIX") as driver:
        driver.send((rank, os.getpid()))
        try:
            _serve(driver, importlib.import_module(module).ways(process))
        except Exception as error:
            traceback.print_exc()
            driver.send(f"{type(error).__name__}: {error}")
            with contextlib.suppress(EOFError):
                driver.recv()  # it hangs up once it has read that; a rank that ends sooner takes the others with it
            sys.exit(1)


def _serve(driver: Connection, ways: Ways) -> None:
    driver.send(True)
    way: Way | None = None
    while True:
        try:
            asked = driver.recv()
        except EOFError:
            return
        if isinstance(asked, int) and way is not None:
            driver.send(block(way, asked))
            continue
        way = None
        gc.collect()  # a function that has been traced refers to itself
        if asked is not None:
            way = ways(asked)
        driver.send(way is not None)


def pin(rank: int) -> None:
    """Binds this process to a core, each rank to another, as long as there are cores."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


if __name__ == "__main__":
    main(sys.argv[1:])
