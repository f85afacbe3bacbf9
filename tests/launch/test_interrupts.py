"""Signals to tfddlrun while it waits: for hosts, for a reader of its output, or for hosts that remove commits."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.job import REPOSITORY
from tests.launch.support import runner, running, wait_until
from tfddl import cli
from tfddl.launch import signals
from tfddl.launch.supervision.children import Children
from tfddl.launch.supervision.loop import Loop

LIMIT_S = 60.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_script_looks_for_hosts(tmp_path, number):
    """The script ends too."""
    script = f"trap 'touch {tmp_path}/ended; exit' TERM; touch {tmp_path}/up; sleep 500 & wait"
    with running(["--elastic", "--host-discovery-script", script, "true"]) as job:
        wait_until((tmp_path / "up").exists)
        job.process.send_signal(number)
        ended = job.finish(LIMIT_S)
    assert ended.code == 128 + number
    assert ended.last_line == f"tfddlrun: stopped by signal {number:d} ({number.name})"
    assert (tmp_path / "ended").exists()


def test_ctrl_z_stops_the_ranks(tmp_path):
    """They have sessions of their own, so that the terminal does not reach them."""
    code = (
        f"import os, time; open('{tmp_path}/' + str(os.getpid()), 'w').close(); "
        "print('up', flush=True); time.sleep(600)"
    )
    with running(["-np", "2", sys.executable, "-c", code], process_group=0) as job:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        processes = [job.process.pid, *(int(path.name) for path in tmp_path.iterdir())]
        for numbers in ((signal.SIGCONT,), (signal.SIGTERM, signal.SIGCONT)):  # `fg`, then `kill %1`
            job.process.send_signal(signal.SIGTSTP)
            wait_until(lambda: all(map(is_stopped, processes)))
            for number in numbers:
                job.process.send_signal(number)
            wait_until(lambda: not any(map(is_stopped, processes)))
        assert job.finish(LIMIT_S).code == 128 + signal.SIGTERM


def test_ctrl_z_stops_the_limits_too():
    loop, called = Loop(), []
    loop.after(0.01, lambda: called.append("due"))
    loop.postpone(60.0)
    time.sleep(0.02)
    loop.turn(wait=False)
    assert not called
    loop.postpone(-60.0)
    loop.turn(wait=False)
    assert called == ["due"]


def test_a_command_that_has_ended_while_ctrl_z_stopped_tfddlrun(monkeypatch):
    wait = subprocess.Popen.wait

    def stopped(process, timeout):
        monkeypatch.setattr(subprocess.Popen, "wait", wait)
        process.wait(LIMIT_S)
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", stopped)
    assert Children().run("echo host:2", 1.0) == (0, "host:2\n", "")


def is_stopped(process: int) -> bool:
    path = Path(f"/proc/{process}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] == "T"


def test_ctrl_c_while_nobody_reads_the_output():
    """As in `tfddlrun | less`."""
    reader, writer = os.pipe()
    code = "while True: print('x' * 999)"
    try:
        with running(["-np", "2", sys.executable, "-c", code], stdout=writer, stderr=writer) as job:
            wait_until(lambda: not select.select([], [writer], [], 0)[1])
            job.process.send_signal(signal.SIGINT)
            assert job.process.wait(LIMIT_S) == 130
    finally:
        os.close(reader)
        os.close(writer)


def test_a_second_ctrl_c_while_the_output_is_read_slowly():
    """As over a slow connection. The reader gets the last line, too."""
    reader, writer = os.pipe()
    code = "while True: print('x' * 999)"
    read = [b""]
    try:
        with running(["-np", "2", sys.executable, "-c", code], stdout=writer, stderr=writer) as job:
            wait_until(lambda: not select.select([], [writer], [], 0)[1])
            time.sleep(1.0)  # more output waits in the connections of the ranks
            job.process.send_signal(signal.SIGINT)
            second = time.monotonic() + 1.0
            while job.process.poll() is None:
                read.append(os.read(reader, 4096))
                time.sleep(0.7)
                if second and time.monotonic() > second:
                    job.process.send_signal(signal.SIGINT)
                    second, deadline = 0.0, time.monotonic() + LIMIT_S
                assert second or time.monotonic() < deadline
            assert job.process.returncode == 130
        os.set_blocking(reader, False)
        read.append(os.read(reader, 1 << 20))
    finally:
        os.close(reader)
        os.close(writer)
    assert b"".join(read).endswith(b"\ntfddlrun: stopped by signal 2 (SIGINT)\n")


AFTER_THE_END = """
import io, os, signal
from tfddl.launch import signals
from tfddl.launch.channel import Listener
from tfddl.launch.job import Job
from tfddl.launch.streams.output import Output

reader, writer = os.pipe2(os.O_NONBLOCK)
files = io.FileIO(writer, "wb"), io.FileIO(writer, "wb", closefd=False)
printer = Output(*files, prefixed=True)
listener = Listener(1, False, [], (False, False), (80, 24))
Job(["true"], 1, listener, printer, verbose=False, remote=False).run()
while signals.takes_bytes(files[0], 0.0):
    printer.message("x" * 999)
os.kill(os.getpid(), signal.SIGTERM)
printer.message("the last words")
assert signals.wait_for_signal(0.1) == signal.SIGTERM
"""


def test_a_signal_while_nobody_reads_the_last_words():
    """The signal ends the next start of an elastic job."""
    subprocess.run([sys.executable, "-c", AFTER_THE_END], cwd=REPOSITORY, check=True, timeout=LIMIT_S)


IGNORED = """
import os, signal, sys
from tfddl.launch import signals
ignored = int(sys.argv[1])
for number in signals.ENDS:
    signal.signal(number, signal.SIG_IGN if number == ignored else signal.SIG_DFL)
signals.interrupt()
signals.watch()
for number in signals.ENDS:
    os.kill(os.getpid(), number)
print(*signals.take())
"""


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_is_ignored_at_the_start_stays_ignored(ignored):
    """As by `trap '' INT`, and in a job that a script starts with &."""
    command = [sys.executable, "-c", IGNORED, str(int(ignored))]
    ended = subprocess.run(command, cwd=REPOSITORY, check=True, timeout=LIMIT_S, stdout=subprocess.PIPE)
    assert set(map(int, ended.stdout.split())) == {1, 2, 3, 15} - {ignored}


@pytest.mark.parametrize("command", ["tune", "doctor"])
def test_which_commands_handle_sigterm(monkeypatch, command):
    """`tfddl tune` runs as a rank, where no handler in Python would run."""
    found = []
    monkeypatch.setattr(
        cli.main.commands[command], "callback", lambda **_: found.append(signal.getsignal(signal.SIGTERM))
    )
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert runner().invoke(cli.main, [command]).exit_code == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (found == [signal.SIG_DFL]) == (command == "tune")


def test_an_interrupt_without_a_number():
    assert signals.number_of(KeyboardInterrupt("text", 1)) == signal.SIGINT
    assert signals.number_of(KeyboardInterrupt(signal.SIGHUP)) == signal.SIGHUP


MPIRUN = """#!/bin/sh
cd "$(dirname "$0")"
case "$*" in
  --version) echo 'mpirun (Open MPI) 5.0.11'; exit ;;
  *' a:1,b:1 '*) exit 3 ;;
  *' a:1 '*) touch a ;;
  *' b:1 '*) touch b ;;
esac
sleep 60
"""


def test_ctrl_c_while_hosts_that_are_gone_would_remove_commits(tmp_path):
    """tfddlrun asks all hosts at once, by a stand-in for mpirun."""
    (tmp_path / "mpirun").write_text(MPIRUN)
    (tmp_path / "mpirun").chmod(0o755)
    code = (
        "from tfddl.launch import mpirun, run; "
        f"mpirun._beside_python = lambda: [{str(tmp_path)!r}]; run.main()"
    )
    command = [sys.executable, "-c", code, "--elastic", "-H", "a,b", "true"]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL) as job:
        try:
            wait_until((tmp_path / "a").exists)
            wait_until((tmp_path / "b").exists, 15.0)
            job.send_signal(signal.SIGINT)
            assert job.wait(15.0) == 3
        finally:
            job.kill()
