"""The supervisor of a rank, without mpirun and tfddlrun."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from tfddl.launch import rank_shim

ENDED_BEFORE_ANYONE_LOOKS = """
class Popen(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

rank_shim.subprocess.Popen = Popen
"""


def supervised(command, patch=""):
    """Runs a command as rank 0, with a terminal. Prints its exit status, and what tfddlrun receives."""
    program = f"""
import os, socket, subprocess
from tfddl.launch import rank_shim
{patch}
tfddlrun, connection = socket.socketpair()
stub, held_by_stub = os.pipe()
settings = {{"token": "", "job": "", "scratch": [], "terminal": [True, True], "columns": 99999, "rows": 24}}
status = rank_shim.Supervisor(connection, stub, settings).run({command!r})
print(status, tfddlrun.recv(1 << 16))
"""
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"OMPI_COMM_WORLD_RANK": "0"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_rank_that_ended_before_its_supervisor_looked():
    """Python collects an ended child whose object is gone: the supervisor would wait for its status for ever."""
    ended = supervised(["sh", "-c", "exit 7"], ENDED_BEFORE_ANYONE_LOOKS)
    assert ended.stdout.startswith("7 ") and not ended.stderr, ended


@pytest.mark.parametrize(("before", "signal", "short"), [(3, 9, True), (4, 9, False), (3, 11, False)])
def test_a_rank_killed_for_lack_of_memory(before, signal, short):
    counts = f"counts = iter([{before}, 4])\nrank_shim._kills_for_memory = lambda: next(counts)"
    ended = supervised(["sh", "-c", f"kill -{signal} $$"], counts)
    assert f'"out_of_memory": {str(short).lower()}}}' in ended.stdout, ended.stderr


def test_the_terminal_of_a_rank():
    assert "24 65535" in supervised(["sh", "-c", "stty size <&1"]).stdout
    no_terminal = "def fail(*_): raise OSError('no such device')\nos.openpty = fail"
    ended = supervised(["sh", "-c", "test -t 1 || echo pipe $PYTHONUNBUFFERED"], no_terminal)
    assert "pipe 1" in ended.stdout, ended


@pytest.mark.parametrize("name", ["_start", "_turn", "_drain"])
def test_a_supervisor_that_fails_says_so(name):
    fails = f"def fail(*_): raise ValueError('no')\nrank_shim.Supervisor.{name} = fail"
    ended = supervised(["true"], fails)
    assert ended.stdout.startswith("1 ") and "internal error in the supervisor" in ended.stdout, ended
    assert "ValueError: no" in ended.stdout and '"status": 1, "stopped": false}' in ended.stdout


def test_a_missing_program_whose_name_is_not_utf_8():
    ended = supervised(["./n\udcf6"])
    assert ended.stdout.startswith("127 ") and r"n\xf6" in ended.stdout, ended


@pytest.mark.parametrize(
    ("program", "content", "mode", "said"),
    [
        ("./run.sh", "#!/bin/sh", 0o644, "it may not be executed; run chmod +x ./run.sh"),
        ("run.sh", "#!/bin/sh", 0o755, "it is not on PATH; give its path: ./run.sh"),
        ("./run.sh", "echo", 0o755, "Exec format error; begin a script with a line such as #!/bin/sh"),
        ("./run.sh", "#!/bin/sh\r\n", 0o755, "the program in its line #! does not exist; correct that line"),
        ("../{folder}", "", 0o755, "it is a folder; give the path of a program"),
    ],
)
def test_a_script_that_cannot_run(tmp_path, monkeypatch, program, content, mode, said):
    (tmp_path / "run.sh").write_text(content)
    (tmp_path / "run.sh").chmod(mode)
    monkeypatch.chdir(tmp_path)
    command = [program.format(folder=tmp_path.name)]
    with pytest.raises(OSError, match=r"\[Errno") as caught:
        subprocess.run(command, timeout=60)
    _, line = rank_shim.not_started(command, caught.value)
    assert line == f"tfddlrun: cannot run '{command[0]}': {said}\n"


def test_counts_of_the_kernel():
    with open("/proc/vmstat") as counts:
        expected = dict(line.split() for line in counts).get("oom_kill", "0")
    assert rank_shim._kills_for_memory() == int(expected)


@pytest.mark.parametrize(
    ("command", "variables"),
    [(["python", "a\n;é", "\udcff", ""], 1), ([""], 1), (["x" * 99_999] * 3, 4), ([], 0)],
    ids=["bytes", "empty", "long", "none"],
)
def test_a_command_travels_in_variables_that_linux_takes(monkeypatch, command, variables):
    given = rank_shim.command_variables(command)
    assert len(given) == variables and all(len(value) < 1 << 17 for value in given.values())
    assert all(value.isascii() and value.isprintable() for value in given.values())
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert rank_shim.take_command() == command
    assert not [name for name in os.environ if name.startswith(rank_shim.COMMAND_VARIABLE)]


def test_output_that_tfddlrun_reads_late():
    """A command that comes unread loses nothing of what tfddlrun has not read yet."""
    count = 1 << 24
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = {
            "hosts": ["127.0.0.1"],
            "port": server.getsockname()[1],
            "token": "",
            "job": "",
            "scratch": [],
        }
        settings |= {"terminal": [False, False], "columns": 80, "rows": 24}
        environment = os.environ | {"OMPI_COMM_WORLD_RANK": "0", rank_shim.VARIABLE: json.dumps(settings)}
        command = [sys.executable, "-I", "-S", rank_shim.__file__, "head", "-c", str(count), "/dev/zero"]
        with subprocess.Popen(command, env=environment) as shim:
            server.settimeout(60)
            link, _ = server.accept()
            link.settimeout(60)
            time.sleep(1.0)  # the shim waits for room to send
            link.send(rank_shim.LOOK * 2000)
            received = bytearray()
            while data := link.recv(1 << 16):
                received += data
                time.sleep(0.001)
            link.close()
            assert shim.wait(60) == 0
    assert received.count(0) > count and received.endswith(b'"out_of_memory": false}')
