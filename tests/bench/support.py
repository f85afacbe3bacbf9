"""Runs `tfddl bench` as a user does."""

from collections.abc import Mapping

from tests.harness import run_script
from tests.harness.script import ScriptResult

PLAIN = "from tfddl.cli import main; main()"

STRANGE = """
from tfddl.bench import adapters, job
from tfddl.cli import main

job.ANSWER_LIMIT_S = 5.0
adapters.OWN.clear()
adapters.OWN["copy"] = adapters.Adapter("copy", "tfddl.bench.adapters.copy", (), ("allreduce",))
adapters.PEERS.clear()
adapters.PEERS["mpi4py"] = adapters.Adapter("the strange one", "tests.bench.strange", {packages}, ("allreduce",))
main()
"""
"""A copy and an adapter that goes wrong, which take no TensorFlow."""


def bench(*arguments: str, script: str = PLAIN, environment: Mapping[str, str] | None = None) -> ScriptResult:
    """`tfddl bench` with the arguments; no process of it may be left at the end."""
    return run_script(0, script, "bench", *arguments, environment=environment)


def bench_strange(how: str, *arguments: str, packages: tuple[str, ...] = ()) -> ScriptResult:
    """Measures an adapter that goes wrong: `strange.py`."""
    script = STRANGE.format(packages=packages)
    common = ["allreduce", "--sizes", "4M", "--rounds", "2"]
    return bench(*common, *arguments, script=script, environment={"STRANGE": how})
