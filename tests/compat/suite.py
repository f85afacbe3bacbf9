"""Runs Horovod's own tests of TensorFlow on two ranks: `python -m tests.compat.suite FOLDER`."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.compat.suite_reasons import reason_of
from tests.harness.job import REPOSITORY

LIMIT_S = 1200  # for the tests of one file
RANKS = 2
FILES = (
    "test_adasum_tensorflow",
    "test_keras",
    "test_process_sets_static",
    "test_tensorflow",
    "test_tensorflow2_keras",
    "test_tensorflow2_keras_process_sets",
    "test_tensorflow_keras",
    "test_tensorflow_process_sets",
    "test_tensorflow_process_sets_dynamic",
)


def run_file(folder: Path, name: str, log_file: Path, directory: Path) -> list[dict]:
    """Runs the tests of one file, and returns the reports of all ranks, which they write into an empty directory."""
    records = directory / f"{name}.{{rank}}.jsonl"
    environment = {
        **os.environ,
        "TFDDL_SUITE_RECORD": str(records),
        "TFDDL_STALL_LIMIT": "20",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH")))),
    }
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.compat.suite_record",
    ]
    job = [sys.executable, "-m", "tfddl.launch.run", "--horovod", "-np", str(RANKS), *pytest, f"{name}.py"]
    with log_file.open("wb") as log:
        subprocess.run(
            ["timeout", "-k", "10", str(LIMIT_S), *job],
            cwd=folder / "parallel",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    reports = []
    for rank in range(RANKS):
        path = Path(str(records).format(rank=rank))
        lines = path.read_text().splitlines() if path.exists() else []
        reports += [{**json.loads(line), "rank": rank} for line in lines]
        if not lines:
            reports.append(
                {"test": f"{name}.py", "outcome": "failed", "part": "file", "reason": "no test ran"}
            )
    return reports


def judge(reports: list[dict]) -> dict[str, tuple[str, str]]:
    """Test -> "passed", "failed" or "skipped", and the reason. It has passed if it ran, and failed on no rank."""
    results: dict[str, tuple[str, str]] = {}
    for test in dict.fromkeys(report["test"] for report in reports):
        own = [report for report in reports if report["test"] == test]
        failed = [report for report in own if report["outcome"] == "failed"]
        # The call of a test with subtests passes where all subtests are skipped.
        ran = [report for report in own if report["part"] == "subtest"] or [
            report for report in own if report["part"] == "call"
        ]
        if failed:
            results[test] = "failed", failed[0]["reason"]
        elif any(report["outcome"] == "passed" for report in ran):
            results[test] = "passed", ""
        else:
            results[test] = "skipped", ""
    return results


def show(results: dict[str, tuple[str, str]]) -> int:
    """Prints what failed, and why. Returns the number of failures without a known reason."""
    table = Table("test", "error", "reason")
    unknown = 0
    for test, (outcome, error) in results.items():
        if outcome == "failed":
            reason = reason_of(test, error)
            unknown += reason is None
            table.add_row(escape(test), escape(error[:120]), reason or "UNKNOWN")
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    counts = {
        kind: sum(outcome == kind for outcome, _ in results.values())
        for kind in ("passed", "failed", "skipped")
    }
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return unknown


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", multiple=True, help="Names of files, without .py. Default: all of TensorFlow.")
def main(folder: Path, only: tuple[str, ...]) -> None:
    """Runs the tests in FOLDER, the folder `test` of Horovod 0.28, which stay out of this repository.

    A test counts as passed if it ran, and failed on none of the two ranks. A machine without a GPU skips the tests for GPUs.
    Exits with code 1 if a test fails for a reason that tests/compat/suite_reasons.py does not have.
    """
    with tempfile.TemporaryDirectory() as directory:
        output = REPOSITORY / "build" / "horovod-suite"
        output.mkdir(parents=True, exist_ok=True)
        reports = []
        for name in only or FILES:
            log_file = output / f"{name}.txt"
            reports += run_file(folder, name, log_file, Path(directory))
            print(f"{name}: done; its output is in {log_file}", flush=True)
        sys.exit(show(judge(reports)) > 0)


if __name__ == "__main__":
    main()
