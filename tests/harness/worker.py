"""One rank of a group: `python -m tests.harness.worker SOCKET DIRECTORY`, under mpirun.

Takes cases from the socket until it is told to stop. Imports stay, so TensorFlow is imported once per rank.
"""

import faulthandler
import gc
import importlib
import os
import signal
import socket
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import pytest
import tensorflow as tf
from mpi4py import MPI

from tests.harness.case import FAILED, PASSED, SKIPPED, Case, Outcome, describe, stack_file


def given(name: str) -> Any:
    """The value of a body's first parameter, by its name.

    `hvd` is tfddl, initialised; `comm` is mpi4py's COMM_WORLD, for tests that need no tfddl.
    """
    if name == "comm":
        return MPI.COMM_WORLD
    if name == "hvd":
        tfddl = importlib.import_module("tfddl")
        if not tfddl.is_initialized():
            tfddl.init()
        return tfddl
    raise TypeError(f"The first parameter of an @on_ranks test is `hvd` or `comm`. Received: '{name}'")


def run(case: Case, rank: int) -> Outcome:
    """Runs one case to its end and says how it went."""
    start = time.monotonic()
    kind, text = PASSED, ""
    try:
        sys.path[:] = [*case.search, *(path for path in sys.path if path not in case.search)]
        test = getattr(importlib.import_module(case.module), case.function)
        test.body(given(test.first_parameter), **case.arguments)
    except BaseException as error:  # pytest.skip and SystemExit are no Exception.
        skipped = type(error).__name__ == "Skipped"
        kind, text = (SKIPPED, str(error)) if skipped else (FAILED, describe(error))
    for argument in case.arguments.values():
        if isinstance(argument, pytest.MonkeyPatch):  # a copy, whose changes pytest does not see
            argument.undo()
    sys.stdout.flush()
    return Outcome(rank, kind, text, time.monotonic() - start)


def switch_off_autotuning() -> None:
    """Of tf.data: its thread may not see that an iterator ends, which then takes as long as it has lived, up to a minute."""
    plain, options = tf.data.Dataset._apply_debug_options, tf.data.Options()
    options.autotune.enabled = False
    tf.data.Dataset._apply_debug_options = lambda dataset: plain(dataset.with_options(options))


def main() -> None:
    """Connects, says who it is, and serves."""
    switch_off_autotuning()
    address, directory = sys.argv[1:3]
    rank = MPI.COMM_WORLD.rank
    stacks = stack_file(directory, rank).open("w")  # open to the end, for a rank that does not end
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(address)
    connection = Connection(connected.detach())
    connection.send((rank, os.getpid()))
    while (case := connection.recv()) is not None:
        connection.send(run(case, rank))
    gc.freeze()  # Python would take hundreds of traced functions apart, which takes longer than some of the tests


if __name__ == "__main__":
    main()
