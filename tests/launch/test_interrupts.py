"""Signals to tfddlrun while it waits: for hosts, or for a reader of its output."""

import signal
import time

from tests.launch.support import running

LIMIT_S = 60.0


def wait_until(condition) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ctrl_c_while_a_script_looks_for_hosts(tmp_path):
    """The script ends too."""
    script = f"touch {tmp_path}/up; sleep 500; true"
    with running(["--elastic", "--host-discovery-script", script, "true"]) as job:
        wait_until((tmp_path / "up").exists)
        job.process.send_signal(signal.SIGINT)
        ended = job.finish(LIMIT_S)
    assert ended.code == 130
    assert ended.last_line == "tfddlrun: stopped by signal 2 (SIGINT)"
