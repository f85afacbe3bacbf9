"""`tfddl bench` measures on real ranks, checks the results, and reports skipped adapters."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.bench.support import bench, bench_faulty
from tests.harness import long

COLUMNS = {
    "bytes", "count", "type", "redop", "name", "what", "us", "p10 us", "p90 us", "algbw GB/s", "busbw GB/s",
    "x tfddl", "excess us", "#wrong",
}  # fmt: skip
FACTORS = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "chain": lambda n: 2 * (n - 1) / n,
    "broadcast": lambda n: 1,
    "allgather": lambda n: (n - 1) / n,
    "reducescatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
}


def measured(path, result):
    assert result.code == 0, result.output
    document = json.loads(path.read_text())
    assert document["failed"] == {}
    assert sum(row["#wrong"] for row in document["rows"]) == 0
    return document


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_allreduce(ranks, tmp_path):
    json_path, plot, markdown = (tmp_path / f"result.{suffix}" for suffix in ("json", "png", "md"))
    files = ["--json", str(json_path), "--plot", str(plot), "--markdown", str(markdown)]
    result = bench(
        "allreduce", "-np", str(ranks), "--sizes", "4B,64K", "--rounds", "2", "--peers", "mpi4py", *files
    )
    document = measured(json_path, result)
    names = {"tfddl", "nothing", "chained", "copy", "mpi4py", "floor"} | ({"futex"} if ranks > 1 else set())
    for size in (4, 65536):
        rows = {row["name"]: row for row in document["rows"] if row["bytes"] == size}
        assert set(rows) == names | ({"shared"} if size > 4 else set()), "small results are private"
        assert all(set(row) == COLUMNS for row in rows.values())
        assert all(
            0 < row["p10 us"] <= row["us"] <= row["p90 us"] for name, row in rows.items() if name != "shared"
        )
        assert rows["floor"]["us"] == pytest.approx(rows["copy"]["us"] * (2 * ranks - 1) / ranks)
        tfddl = rows["tfddl"]
        assert tfddl["x tfddl"] == 1 and tfddl["excess us"] == tfddl["us"] - rows["nothing"]["us"]
        assert tfddl["busbw GB/s"] == pytest.approx(tfddl["algbw GB/s"] * 2 * (ranks - 1) / ranks)
    assert document["ranks"] == ranks and document["machine"]["packages"]["tfddl"]
    assert f"allreduce, float32, {ranks} ranks" in result.output
    assert ("ranks share" in result.output) == (ranks > len(os.sched_getaffinity(0)))
    assert plot.read_bytes().startswith(b"\x89PNG")
    header, _, *lines = markdown.read_text().splitlines()
    assert "tfddl, us" in header and [line.split()[1] for line in lines] == ["4B", "64K"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("operation", "ranks", "dtype"),
    [
        ("broadcast", 2, "float32"),
        ("chain", 2, "float32"),
        ("chain", 3, "int32"),
        ("allgather", 3, "int64"),
        ("reducescatter", 3, "float64"),
        ("alltoall", 2, "int32"),
    ],
)
def test_other_operations(operation, ranks, dtype, tmp_path):
    path = tmp_path / "result.json"
    result = bench(
        operation, "-np", str(ranks), "--sizes", "100B,100K", "--dtype", dtype, "--rounds", "1",
        "--peers", "mpi4py", "--json", str(path),
    )  # fmt: skip
    rows = measured(path, result)["rows"]
    assert [row["name"] for row in rows] == 2 * ["tfddl", "nothing", "mpi4py"]
    for row in (row for row in rows if row["name"] != "nothing"):
        assert row["type"] == dtype and (row["redop"] == "sum") == (operation in ("chain", "reducescatter"))
        assert row["algbw GB/s"] == pytest.approx(row["bytes"] / row["us"] / 1e3)
        assert row["busbw GB/s"] == pytest.approx(row["algbw GB/s"] * FACTORS[operation](ranks))


@pytest.mark.long
def test_gradients(tmp_path):
    path, plot = tmp_path / "result.json", tmp_path / "result.svg"
    peers = ["--peers", "mpi4py,mpi4py-fused"]
    result = bench(
        "gradients", "-np", "2", "--sets", "1000x1KB", "--rounds", "1", *peers,
        "--json", str(path), "--plot", str(plot),
    )  # fmt: skip
    rows = measured(path, result)["rows"]
    wanted = ["tfddl", "nothing", "copy", "mpi4py", "mpi4py-fused", "floor"]
    assert [row["name"] for row in rows] == wanted
    assert all(row["set"] == "1000x1KB" and row["count"] == 256_000 for row in rows)
    assert "<svg" in plot.read_text()


@pytest.mark.long
def test_horovod_is_called_as_its_documentation_says(tmp_path):
    """A stand-in has the interface of Horovod."""
    path, here = tmp_path / "result.json", Path(__file__).parent / "stand_in"
    result = bench(
        "alltoall", "-np", "2", "--sizes", "4K", "--rounds", "1", "--peers", "horovod", "--json", str(path),
        environment={"PYTHONPATH": str(here)},
    )  # fmt: skip
    assert [row["name"] for row in measured(path, result)["rows"]] == ["tfddl", "nothing", "horovod"]


def test_wrong_results_are_counted(tmp_path):
    path = tmp_path / "result.json"
    result = bench_faulty("is wrong", "--json", str(path))
    assert result.code == 1
    rows = {row["name"]: row for row in json.loads(path.read_text())["rows"]}
    assert rows["copy"]["#wrong"] == 0
    # Three blocks, of which the first warms up. Results are wrong from the eighth call of the last rank on, in the first.
    assert rows["mpi4py"]["#wrong"] == 3 * 2
    assert "Error: 6 elements of the results were wrong." in result.output


@pytest.mark.parametrize(
    ("how", "says"),
    [
        long("raises at the start", "the faulty one: rank 1: ValueError: on purpose"),
        ("raises", "the faulty one: rank 1: ValueError: on purpose"),
        # Where the driver is late, both ranks have ended: tfddlrun ends rank 0.
        ("dies", "the faulty one: (rank 0 and )?rank 1 died\ntfddlrun: rank 1 exited with code"),
        long("hangs", "the faulty one: no answer in time from rank 1"),
    ],
)
def test_an_adapter_that_breaks_down_takes_only_its_own_numbers(how, says, tmp_path):
    path = tmp_path / "result.json"
    result = bench_faulty(how, "--json", str(path))
    assert result.code == 1 and re.search(says, result.output), result.output
    assert "Error: Failed: mpi4py. See the errors above." in result.output
    document = json.loads(path.read_text())
    assert {row["name"] for row in document["rows"]} == {"copy", "floor"}
    assert list(document["failed"]) == ["mpi4py"]


def test_what_is_not_installed_is_one_line():
    result = bench_faulty("is wrong", packages=("no_such_package",))
    assert result.code == 0, result.output
    lines = [line for line in result.output.splitlines() if "faulty" in line]
    assert lines == ["the faulty one is left out: no_such_package is not installed"]
