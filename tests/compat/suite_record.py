"""A plugin of pytest: writes each report of a rank as a line of JSON to the file in `TFDDL_SUITE_RECORD`."""

import json
import os

PATH = os.environ["TFDDL_SUITE_RECORD"].format(rank=os.environ["HOROVOD_RANK"])


def pytest_runtest_logreport(report):
    """Writes a report of the setup, call or teardown of a test, or of a subtest."""
    line = {
        "test": report.nodeid.rpartition("/")[2],
        "outcome": report.outcome,
        "part": "subtest" if hasattr(report, "context") else report.when,
        "reason": _last_line(report.longreprtext) if report.failed else "",
    }
    _write(line)


def pytest_collectreport(report):
    """Writes the report of a file that cannot be imported."""
    if report.failed:
        line = {"test": report.nodeid.rpartition("/")[2], "outcome": "failed", "part": "collect"}
        _write({**line, "reason": _last_line(report.longreprtext)})


def _write(line):
    with open(PATH, "a") as file:
        print(json.dumps(line), file=file)


def _last_line(text):
    errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return errors[0] if errors else text.strip().rpartition("\n")[2]
