"""Runs `tfddl bench` as a user does."""

from collections.abc import Mapping

from tests.harness import run_script
from tests.harness.script import ScriptResult

PLAIN = "from tfddl.cli import main; main()"

FAULTY = """
import os
from tfddl.bench import adapters, worker_group
from tfddl.cli import main

if os.environ["FAULTY"] == "hangs":
    worker_group.ANSWER_LIMIT_S = 5.0
adapters.OWN.clear()
adapters.OWN["copy"] = adapters.Adapter("copy", "tfddl.bench.adapters.copy", (), ("allreduce",))
adapters.PEERS.clear()
adapters.PEERS["mpi4py"] = adapters.Adapter("the faulty one", "tests.bench.faulty_adapter", {packages}, ("allreduce",))
main()
"""
"""Replaces the adapters by a copy and a faulty one, which need no TensorFlow."""


def bench(*arguments: str, script: str = PLAIN, environment: Mapping[str, str] | None = None) -> ScriptResult:
    """Runs `tfddl bench` with the arguments. No process of it may be left at the end."""
    return run_script(0, script, "bench", *arguments, environment=environment)


def bench_faulty(how: str, *arguments: str, packages: tuple[str, ...] = ()) -> ScriptResult:
    """Measures an adapter that fails: `faulty_adapter.py`."""
    script = FAULTY.format(packages=packages)
    common = ["allreduce", "--sizes", "4M", "--rounds", "2"]
    return bench(*common, *arguments, script=script, environment={"FAULTY": how})
