"""The fixture of tests on two hosts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import ScriptResult, run_script
from tests.hosts.support import job_lab_or_skip


@pytest.fixture
def on_hosts(tmp_path: Path) -> Callable[..., ScriptResult]:
    """Runs a script under a launcher on host A, and finds nothing left running on either host."""
    lab = job_lab_or_skip(tmp_path)

    def run(script: str, *launcher: str, **environment: str) -> ScriptResult:
        # The harness has a place for shared memory that these hosts do not see; they have their own.
        variables = {"OMPI_MCA_btl_sm_backing_directory": None, **environment}
        result = run_script(0, script, launcher=[*lab, *launcher], environment=variables)
        assert "left running" not in result.output, result.output
        return result

    return run
