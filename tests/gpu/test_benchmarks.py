"""The benchmarks for GPUs run on the doubles, whose times mean nothing, and say so where there is no GPU."""

import re

import pytest

from tests.harness import run_script, slow
from tests.harness.job import REPOSITORY
from tfddl.build.discover import find_tensorflow
from tfddl.build.locate import locate_library

BENCHMARKS = REPOSITORY / "benchmarks" / "gpu"

ON_DOUBLES = """
import runpy, sys
import tests.gpu.rank
path, sys.argv[1:] = {path!r}, {options!r}
sys.path.insert(0, {directory!r})
runpy.run_path(path, run_name="__main__")
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "options", "title"),
    [
        ("allreduce.py", ["--largest", "65536"], "allreduce float32 Sum on GPUs, 2 ranks"),
        (
            "overlap.py",
            ["--width", "8", "--times", "1", "--megabytes", "1"],
            "buckets behind computation, 2 ranks",
        ),
    ],
)
def test_benchmark_runs_and_its_results_are_right(run_on_gpus, name, options, title):
    script = ON_DOUBLES.format(
        path=str(BENCHMARKS / name), options=["--rounds", "1", *options], directory=str(BENCHMARKS)
    )
    result = run_on_gpus(2, script)
    assert result.code == 0, result.output
    assert title in result.output and "NCCL 22707" in result.output


WITHOUT_TENSORFLOW = """
import ctypes, runpy, sys
ctypes.CDLL({tensorflow!r})  # the library with the ops asks for it by name
sys.modules["tensorflow"] = None
sys.argv[1:] = {options!r}
sys.path.insert(0, {directory!r})
runpy.run_path({path!r}, run_name="__main__")
"""


@pytest.mark.parametrize("ranks", [slow(1), 2, slow(3)])
def test_without_tensorflow(run_on_gpus, ranks):
    """Every collective and dtype, by what compiled programs call."""
    tensorflow = find_tensorflow()
    assert tensorflow is not None
    options = ["--rounds", "1", "--largest", "4096", "--gpus", str(ranks), "--library", str(locate_library())]
    script = WITHOUT_TENSORFLOW.format(
        tensorflow=tensorflow.library,
        options=options,
        directory=str(BENCHMARKS),
        path=str(BENCHMARKS / "core.py"),
    )
    result = run_on_gpus(ranks, script)
    assert result.code == 0, result.output
    assert result.output.count("every collective and dtype is right") == ranks
    assert re.search(r" 4,096 .* 0$", result.output, re.MULTILINE), result.output


@pytest.mark.slow
def test_no_gpu():
    result = run_script(2, BENCHMARKS / "overlap.py")
    assert result.code == 0, result.output
    assert "no GPU: TensorFlow sees none on ranks [0, 1]" in result.output
