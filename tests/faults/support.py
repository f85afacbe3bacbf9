"""Runs a script that goes wrong, under mpirun or under tfddlrun."""

from __future__ import annotations

import sys

from tests.harness import run_script
from tests.harness.script import ScriptResult

SECONDS = 40.0
"""Imports of TensorFlow on a busy machine take most of it; what the fault adds is below LATE."""

LATE = 15.0

IMPORTS = """
import os, signal, sys, threading, time
import tensorflow as tf
import tfddl as hvd
"""

JOIN = """
hvd.init()
x = tf.ones([1000])
assert hvd.allreduce(x, op=hvd.Sum)[0] == hvd.size()
"""

START = IMPORTS + JOIN

START_TOGETHER = IMPORTS + "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n" + JOIN
"""For a short TFDDL_STALL_LIMIT, which holds for the wait in init() too: imports take unequal times."""


def tfddlrun(ranks: int) -> list[str]:
    """The launcher's command line."""
    return [sys.executable, "-m", "tfddl.launch.run", "-np", str(ranks)]


def run(ranks: int, script: str, launcher: list[str] | None = None, **environment: str) -> ScriptResult:
    """Runs a script on some ranks to its end, which must come in time and leave no process."""
    return run_script(ranks, script, limit=SECONDS + LATE, environment=environment, launcher=launcher)


def check_quoted(result: ScriptResult, *quoted: str) -> None:
    """Checks that the output holds some texts, and that no rank came to where it says `not reached`."""
    for text in quoted:
        assert text in result.output, f"'{text}' is not in:\n{result.output}"
    assert "not reached" not in result.output
