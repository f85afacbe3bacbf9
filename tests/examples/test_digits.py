"""The examples as a user runs them."""

import re

import pytest

from tests.harness import long, run_script, slow
from tests.harness.job import REPOSITORY


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("keras_digits.py", 2),
        long("keras_digits.py", 0),
        slow("digits_custom_loop.py", 2),
    ],
)
def test_example_learns_and_ranks_agree(name, size):
    result = run_script(size, REPOSITORY / "examples" / name)
    assert result.code == 0, result.output
    hashes = re.findall(r"weights of rank (\d+): (\w+)", result.output)
    assert len(hashes) == max(size, 1)
    assert len({text for _, text in hashes}) == 1
    assert f"weights equal on all {max(size, 1)} ranks: yes" in result.output
    last = result.output.strip().splitlines()[-1]
    assert float(re.search(r"held-out accuracy: ([\d.]+)", last).group(1)) >= 0.95
    assert float(re.search(r"images/s: ([\d,]+)", result.output).group(1).replace(",", "")) > 0
    gradients = 4 * 85_066  # Every float32 gradient once a step; the metrics add a little.
    reduced = int(re.search(r"reduced per step: ([\d,]+)", result.output).group(1).replace(",", ""))
    assert gradients <= reduced < 1.05 * gradients


@pytest.mark.slow
def test_one_progress_bar():
    few_steps = ("--epochs", "2", "--batch-size", "512")
    result = run_script(2, REPOSITORY / "examples" / "keras_digits.py", *few_steps)
    assert len(re.findall(r"Epoch 1/2", result.output)) == 1
    assert result.code != 0, "Four steps are not enough for the accuracy that the script demands."
    assert "below 0.95" in result.output
