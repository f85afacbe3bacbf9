"""benchmarks/slow_links.py runs in each of its modes, and its formulas give what they say."""

import csv
import json
import sys
from functools import partial

import pytest

from tests.examples.support import imported
from tests.harness import run_script
from tests.harness.job import REPOSITORY
from tests.harness.mpirun import is_open_mpi
from tests.hosts.support import lab_or_skip

BENCHMARKS = REPOSITORY / "benchmarks"
PROGRAM = BENCHMARKS / "slow_links.py"
TINY = ["--width", "64", "--layers", "1", "--length", "16", "--batch", "2", "--steps", "12", "--rounds", "1"]
STREAMING = ["--fragments", "2", "--delay", "2"]


@pytest.mark.long
def test_loss(tmp_path):
    paths = {name: tmp_path / f"curves.{name}" for name in ("json", "csv", "svg")}
    files = [str(word) for name, path in paths.items() for word in (f"--{name}", path)]
    ways = ["--ways", "data parallel,streaming int8 DiLoCo", "--every", "10", "3", *STREAMING]
    result = run_script(2, PROGRAM, "loss", *TINY, *ways, "--validate-every", "6", *files)
    assert result.code == 0, result.output
    names = ["data parallel", "streaming int8 DiLoCo, H=10"]  # 3 steps cannot be divided among 2 fragments
    lines = json.loads(paths["json"].read_text())["rows"]
    assert [line["way"] for line in lines] == names
    assert all(line["rows"] == 12 * 2 * 2 and 4 < line["loss"] < 5.6 for line in lines)
    with paths["csv"].open() as file:
        first, *points = csv.reader(file)
    assert first == ["way", "steps", "rows", "validation loss"]
    assert [(name, int(steps)) for name, steps, *_ in points] == [(n, s) for n in names for s in (6, 12)]
    assert all(name in paths["svg"].read_text() for name in names)


@pytest.mark.long
@pytest.mark.skipif(not is_open_mpi(), reason="the stand-in for ssh is Open MPI's")
def test_utilisation_in_the_lab(tmp_path):
    """A round trip of 50 ms makes each step longer. DiLoCo sends as much as a step does in ten."""
    ways = ["--ways", "data parallel,DiLoCo", "--every", "10"]
    lab = lab_or_skip(tmp_path, "100mbit", "25ms")
    launcher = [*lab, sys.executable, "-m", "tfddl.launch.run", "-np", "2", "-H", "hostA:1,hostB:1"]
    environment = {"OMPI_MCA_btl_sm_backing_directory": None}
    options = [*TINY, *ways, "--json", str(tmp_path / "json")]
    result = run_script(0, PROGRAM, "utilisation", *options, launcher=launcher, environment=environment)
    assert result.code == 0, result.output
    each, seldom = json.loads((tmp_path / "json").read_text())["rows"]
    assert each["way"] == "data parallel" and seldom["way"] == "DiLoCo, H=10"
    assert each["step, ms"] > each["alone, ms"] + 50
    assert 0 < each["utilisation, %"] < 100
    assert 0.08 < seldom["MB a step"] / each["MB a step"] < 0.15


def test_predictions():
    """By hand: 1 Gbit/s carries 125 MB/s, so 32 ranks take 2 * 31 / 32 * 0.8 s for 100 MB, and (5 + 6) * 10 ms."""
    with imported(BENCHMARKS, "prediction") as prediction:
        network = prediction.Network(32, 125e6, latency=0.01, message=1e-4)
        assert network.allreduce(100e6) == pytest.approx(1.55 + 0.0062 + 0.11)
        assert network.int8(100e6) == pytest.approx(1.55 + 0.0372 + 0.36)
        part = partial(prediction.utilisation, 0.5)
        assert part(1, 1.5) == pytest.approx(0.25)
        assert part(10, 5.0) == pytest.approx(0.5)
        assert part(20, 3.0, fragments=4, delay=2) == pytest.approx(10 / 18)
        assert part(20, 1.0, fragments=4, delay=2) == 1.0
