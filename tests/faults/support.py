"""Runs a script that goes wrong, under mpirun or under tfddlrun."""

from __future__ import annotations

import sys

from tests.harness import run_script
from tests.harness.script import ScriptResult

LIMIT = 150.0
"""Seconds: what ends by the default limits of tfddl takes longer. Imports on a busy machine take most of it."""

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

SAID = """
def wait_until_said(text, seconds=1000, times=1):
    end = time.monotonic() + seconds
    while open(os.environ["TMPDIR"] + "/output.txt", errors="replace").read().count(text) < times:
        if time.monotonic() > end: return
        time.sleep(0.05)
"""
"""Waits for an output of any rank, which the harness writes there: no time has to be guessed."""


def start(warning: float = 60, limit: float = 1800) -> str:
    """The start of a script whose ranks have joined, with these values of TFDDL_STALL_WARNING and TFDDL_STALL_LIMIT.

    They hold from a second `init()` on: before it ranks wait for each other's imports and first op, which take as long
    as a busy machine makes them.
    """
    return f"""{START}{SAID}
hvd.shutdown()
os.environ.update(TFDDL_STALL_WARNING="{warning}", TFDDL_STALL_LIMIT="{limit}")
{JOIN}"""


def tfddlrun(ranks: int) -> list[str]:
    """The launcher's command line."""
    return [sys.executable, "-m", "tfddl.launch.run", "-np", str(ranks)]


def run(ranks: int, script: str, launcher: list[str] | None = None, **environment: str) -> ScriptResult:
    """Runs a script on some ranks to its end, which must come in time and leave no process."""
    return run_script(ranks, script, limit=LIMIT, environment=environment, launcher=launcher)


def check_quoted(result: ScriptResult, *quoted: str) -> None:
    """Checks that the output holds some texts, and that no rank came to where it says `not reached`."""
    for text in quoted:
        assert text in result.output, f"'{text}' is not in:\n{result.output}"
    assert "not reached" not in result.output
