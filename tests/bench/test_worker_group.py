"""The workers of one adapter, without `tfddl bench`."""

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfddl.bench.adapters import OWN
from tfddl.bench.case import Case
from tfddl.bench.channel import Listener, connect
from tfddl.bench.place import Place, fill
from tfddl.bench.worker_group import _END_LIMIT_S, WorkerGroup
from tfddl.launch.hosts import parse_hosts


def is_shim(process: int) -> bool:
    return b"/rank_shim.py" in Path(f"/proc/{process}/cmdline").read_bytes()


def workers(process: int) -> list[int]:
    """The workers that a process has started: each is the child of a shim."""
    children = [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    found = [each for each in children if is_shim(process) and not is_shim(each)]
    return found or [worker for each in children for worker in workers(each)]


def state(process: int) -> str:
    """The kernel's letter for the state of a process."""
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]


def wait_until_stopped(processes: list[int]) -> None:
    """The signal reaches a process a moment after it was sent."""
    deadline = time.monotonic() + 10
    while any(state(process) != "T" for process in processes):
        assert time.monotonic() < deadline, [state(process) for process in processes]
        time.sleep(0.01)


@pytest.mark.parametrize("restless", [True, False])
def test_ranks_that_do_not_rest_are_stopped_between_their_turns(restless):
    job = WorkerGroup(dataclasses.replace(OWN["copy"], restless=restless), Place(2))
    try:
        processes = workers(os.getpid())
        assert len(set(processes)) == 2
        for turn in (
            lambda: True,
            lambda: job.prepare(Case("allreduce", 2, 64)),
            lambda: job.block(3)[1] == 0,
        ):
            assert turn()
            if restless:
                wait_until_stopped(processes)
            else:
                assert {state(process) for process in processes}.isdisjoint("T")
    finally:
        job.close()
    assert not any(Path(f"/proc/{process}").exists() for process in processes)


def test_nothing_is_left_of_a_driver_that_is_killed():
    """Stopped workers end too."""
    script = """
import dataclasses
import time
from tfddl.bench.adapters import OWN
from tfddl.bench.place import Place
from tfddl.bench.worker_group import WorkerGroup
job = WorkerGroup(dataclasses.replace(OWN["copy"], restless=True), Place(2))
print("started", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout.readline() == "started\n"
        processes = workers(driver.pid)
        wait_until_stopped(processes)
        driver.kill()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{process}").exists() for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_group_that_ends_before_its_workers_have_connected(monkeypatch):
    """No worker waits for the driver's answer."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(WorkerGroup, "_meet", interrupted)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        WorkerGroup(OWN["copy"], Place(1))
    assert time.monotonic() - began < _END_LIMIT_S


def test_a_stranger_is_no_worker():
    listener = Listener(remote=False)
    with contextlib.closing(listener):
        settings = json.loads(listener.environment()["TFDDL_BENCH"])
        connect(settings | {"token": "f" * 32}, "of another job").close()
        assert listener.accept(10) is None
        with socket.create_connection(("127.0.0.1", settings["port"])) as silent:
            silent.send(b"GET / HTTP/1.1\r\n\r\n")
            silent.shutdown(socket.SHUT_WR)
            assert listener.accept(10) is None
        connection = connect(settings, (1, 7))
        hello, other = listener.accept(10)
        assert hello == (1, 7)
        connection.send("more")
        assert other.recv() == "more"
        other.close()
        connection.close()


def hosts(text):
    return tuple(parse_hosts(text))


@pytest.mark.parametrize(
    ("ranks", "given", "expected"),
    [
        (None, "a:2,b:3", "a:2,b:3"),
        (5, "a:2,b:3", "a:2,b:3"),
        (3, "a:2,b:3", "a:2,b:1"),
        (2, "a:2,b:3", "a:2"),
    ],
)
def test_ranks_fill_the_slots(ranks, given, expected):
    expected = hosts(expected)
    assert fill(hosts(given), ranks) == (sum(host.slots for host in expected), expected)


def test_a_place(monkeypatch):
    monkeypatch.delenv("LAB", raising=False)
    place = Place(5, hosts("localhost:2,b:3"))
    assert place.kind == "several" and place.ranks_on_a_machine == 3
    assert [place.core(rank) for rank in range(5)] == [0, 1, 0, 1, 2]
    own = socket.gethostname()
    assert place.addresses(range(5)) == (f"{own}:0", f"{own}:1", "b:2", "b:3", "b:4")
    alone = Place(2)
    assert alone.kind == "one" and alone.addresses([5, 6]) == ("localhost:5", "localhost:6")
    monkeypatch.setenv("LAB", "1gbit,,2")
    assert place.ranks_on_a_machine == 5 and [place.core(rank) for rank in range(5)] == [0, 1, 2, 3, 4]
