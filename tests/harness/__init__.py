"""Tests in several real processes: `on_ranks` for many short cases, `run_script` for one whole job."""

from tests.harness.on_ranks import on_ranks
from tests.harness.rows import long, slow
from tests.harness.script import ScriptResult, run_script

__all__ = ["ScriptResult", "long", "on_ranks", "run_script", "slow"]
