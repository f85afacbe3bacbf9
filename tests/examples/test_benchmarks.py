"""The benchmarks of a checkout run, check their own results, and count what they say. `tfddl bench`: tests/bench."""

import json

import pytest

from tests.examples.support import imported
from tests.harness import run_script
from tests.harness.job import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "options", "lines"),
    [
        ("transport.py", ["--rounds", "1", "--sizes", "65536", "1048576"], 6),
        ("xla.py", ["--rounds", "1", "--steps", "2", "--batch", "4", "--models", "demo"], 6),
        ("data_parallel.py", ["--rounds", "1"], 2),
        ("sharded.py", ["--rounds", "1", "--steps", "2", "--models", "dense"], 1),
        ("waiting.py", ["--rounds", "1", "--seconds", "0.5", "--late", "0.5"], 2),
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


TIMES = {
    64 << 10: {"tfddl": 300.0, "nothing": 100.0, "futex": 40.0, "horovod": 1000.0},
    1 << 20: {"tfddl": 160.0, "nothing": 100.0, "mpi4py": 100.0},
    16 << 20: {"tfddl": 551.0, "nothing": 100.0, "mpi4py": 1000.0},
    "resnet50": {"tfddl": 231.0, "nothing": 100.0, "floor": 100.0, "horovod": 700.0},
    "1000x1KB": {"tfddl": 124.0, "nothing": 100.0, "floor": 1.0, "horovod": 200.0},
    "cnn": {"tfddl": 120.0, "nothing": 100.0, "floor": 10.0, "floor after a step": 20.0},
}


def test_bars():
    """By hand: excess 200 is 5 ping-pongs and a fifth of Horovod; 0.6 is just met, 0.551, 1.31 and 120 of 113 just not."""
    rows = [
        {"bytes": case, "name": name, "us": us} | ({"set": case} if isinstance(case, str) else {})
        for case, times in TIMES.items()
        for name, us in times.items()
    ]
    with imported(BENCHMARKS, "bars") as bars:
        lines = list(bars.judged(rows))
    assert [(line["case"], round(line["is"], 3), line["bar"], line["ok"]) for line in lines] == [
        ("64K", 5.0, 4.0, "NO"),
        ("64K", 0.2, 0.1, "NO"),
        ("1M", 0.6, 0.6, "yes"),
        ("16M", 0.551, 0.55, "NO"),
        ("resnet50", 1.31, 1.3, "NO"),
        ("resnet50", 0.33, 1 / 3, "yes"),
        ("1000x1KB", 0.24, 0.25, "yes"),
        ("cnn", 1.062, 1.0, "NO"),
        ("cnn", 0.952, 1.0, "yes"),
    ]
