"""The TF1 example as a user runs it."""

import re

import pytest

from tests.harness import run_script
from tests.harness.job import REPOSITORY


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 0], ids=["np2", "plain"])
def test_learns(size):
    result = run_script(size, REPOSITORY / "examples" / "tf1_session.py")
    assert result.code == 0, result.output
    assert float(re.search(r"held-out accuracy: ([\d.]+)", result.output).group(1)) >= 0.9
    losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", result.output)]
    assert len(losses) == (4 if size == 2 else 8)
    assert losses[-1] < losses[0] / 2
