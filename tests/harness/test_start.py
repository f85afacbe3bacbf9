"""Ranks that are forks of a process with TensorFlow imported behave like a Python of their own."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.harness import run_script
from tests.harness.start import python_command

REPORT = """
import os, random, sys
from pathlib import Path
import numpy as np
assert __name__ == "__main__" and __file__ == sys.argv[0]
assert sys.path[0] == str(Path(__file__).parent), sys.path
print("tensorflow is imported" if "tensorflow" in sys.modules else "fresh")
print("line", os.environ["OMPI_COMM_WORLD_RANK"], sys.argv[1:], random.random(), np.random.random(), flush=True)
"""


def test_a_fork_is_the_script_of_its_rank():
    result = run_script(2, REPORT, "a", "b")
    assert result.code == 0, result.output
    assert result.output.count("tensorflow is imported") == 2
    lines = sorted(line.split("line ")[1] for line in result.output.splitlines() if "line " in line)
    assert [line.split(" 0.")[0] for line in lines] == ["0 ['a', 'b']", "1 ['a', 'b']"]
    numbers = [word for line in lines for word in line.split()[-2:]]
    assert len(set(numbers)) == 4, "ranks would draw the same random numbers"


@pytest.mark.parametrize("options", [{"fresh": True}, {"environment": {"TF_ENABLE_ONEDNN_OPTS": "0"}}])
def test_a_test_gets_a_python_of_its_own_if_it_asks_or_changes_what_imports_read(options):
    result = run_script(2, REPORT, **options)
    assert result.code == 0 and result.output.count("fresh") == 2, result.output


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("raise SystemExit(3)", 3),
        ("import os; os._exit(4)", 4),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import atexit, os; atexit.register(os._exit, 5)", 5),
    ],
)
def test_ends_as_its_process_ends(script, code):
    assert run_script(0, script).code == code


def test_a_fork_gets_signals_and_dies_with_its_client(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('got it', flush=True))\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(30)\n"
    )
    with subprocess.Popen(python_command([str(script)]), stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        client.send_signal(signal.SIGUSR1)
        assert client.stdout.readline() == "got it\n"
        assert os.getpgid(pid) > 0  # it lives
        client.kill()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


def test_the_server_outlives_clients_that_are_killed_at_any_time():
    server = python_command(["-m", "this"])[4]
    for _ in range(5):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(server)
    for seconds in (0.0, 0.01, 0.02, 0.03, 0.05, 0.1):
        with subprocess.Popen(python_command(["-m", "this"]), stdout=subprocess.DEVNULL) as started:
            time.sleep(seconds)
            started.kill()
    assert run_script(0, "print('still there')").code == 0
