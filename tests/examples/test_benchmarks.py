"""The benchmarks run, check their own results, and count what they say."""

import json

import pytest

from tests.examples.support import imported
from tests.harness import run_script
from tests.harness.job import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"


@pytest.fixture
def shapes():
    """The module of the benchmark scripts' gradient sets."""
    with imported(BENCHMARKS, "shapes") as module:
        yield module


def test_resnet50_has_its_published_size(shapes):
    assert len(shapes.resnet50()) == 161
    assert shapes.floats(shapes.resnet50()) == 25_557_032
    assert shapes.floats(shapes.many_small()) == 256_000


@pytest.mark.parametrize(
    ("name", "options", "lines"),
    [
        ("allreduce.py", ["--rounds", "1", "--sizes", "4", "65536"], 2),
        ("gradients.py", ["--rounds", "1", "--sets", "ResNet-50"], 1),
        ("transport.py", ["--rounds", "1", "--sizes", "65536", "1048576"], 6),
        ("training.py", ["--rounds", "1", "--steps", "2", "--batch", "8"], 2),
        ("xla.py", ["--rounds", "1", "--steps", "2", "--batch", "4", "--models", "demo"], 4),
    ],
)
def test_benchmark_runs_and_its_results_are_right(name, options, lines, tmp_path):
    path = tmp_path / "result.json"
    result = run_script(2, BENCHMARKS / name, *options, "--json", str(path))
    assert result.code == 0, result.output
    document = json.loads(path.read_text())
    assert len(document["rows"]) == lines
    assert all(row["#wrong"] == 0 for row in document["rows"])
    assert document["machine"]["ranks"] == 2
    assert document["title"] in result.output
