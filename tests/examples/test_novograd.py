"""The NovoGrad example as a user runs it."""

import re

from tests.harness import run_script
from tests.harness.job import REPOSITORY


def test_learns():
    result = run_script(2, REPOSITORY / "examples" / "novograd.py")
    assert result.code == 0, result.output
    assert float(re.search(r"held-out accuracy: ([\d.]+)", result.output).group(1)) >= 0.9
    assert re.search(r"NovoGrad of (tfddl|tensorflow_addons), TensorFlow 2\.", result.output)
