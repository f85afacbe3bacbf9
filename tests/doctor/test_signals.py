"""A signal to `tfddl doctor` ends its probes, and their temporary folders go."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.harness.job import REPOSITORY
from tfddl.doctor import probe

# A probe that hangs: LIMIT_S would end it after two minutes.
PROGRAM = """
from tfddl import cli
from tfddl.doctor import probe
run_process = probe.run_process
code = "import os, time; open(os.environ['TMPDIR'] + '/started', 'x'); time.sleep(100)"
probe.run_process = lambda command, *rest, **more: run_process([command[0], "-c", code], *rest, **more)
cli.main(["doctor"])
"""


def test_ctrl_c_while_a_probe_starts(monkeypatch):
    """The process of the probe is not there yet."""
    start = subprocess.Popen

    def slow(_, **options):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.3)
        return start(["sleep", "20"], **options)

    monkeypatch.setattr(subprocess, "Popen", slow)
    monkeypatch.setattr(probe, "PROBES", {"python": probe.PROBES["python"]})
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(probe.run_all())
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_leaves_nothing(tmp_path, number):
    doctor = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=REPOSITORY,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + 60
        while not list(tmp_path.glob("tfddl-doctor-*/started")) and time.monotonic() < end:
            time.sleep(0.05)
        doctor.send_signal(number)
        _, said = doctor.communicate(timeout=60)
    finally:
        doctor.kill()
    assert (doctor.returncode, said) == (128 + number, f"tfddl: stopped by signal {number} ({number.name})\n")
    assert list(tmp_path.iterdir()) == []
