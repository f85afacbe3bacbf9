"""Connections to tfddlrun's port that come from no shim: the job goes on."""

import contextlib
import json
import socket
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.launch.support import running
from tfddl.launch.channel import Ended, Hello, Listener
from tfddl.launch.rank_shim import ENDED, HEADER, HELLO, VARIABLE

PROCESSES = 2
LISTENER = Listener(PROCESSES, False, [], (False, False), (80, 24))
SHIM = json.loads(LISTENER.environment()[VARIABLE])
GOOD = {"token": SHIM["token"], "rank": 1, "host": "node1"}


def frame(payload: bytes, kind: bytes = HELLO) -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


@contextlib.contextmanager
def connected(data: bytes):
    """The link of a new connection that has sent `data`, and stays open."""
    with socket.create_connection(("127.0.0.1", SHIM["port"])) as stranger:
        stranger.sendall(data)
        link = None
        while link is None:
            link = LISTENER.accept()
        try:
            yield link
        finally:
            link.close()


def said(data: bytes):
    """The messages of a connection that has sent `data`, which is not empty; None where the link is to be closed."""
    with connected(data) as link:
        link._connection.setblocking(True)
        return link.receive()


def test_a_hello_with_the_token():
    assert said(frame(json.dumps(GOOD).encode())) == [Hello(1, "node1")]


STRANGE = [
    frame(b"7"),
    frame(b'"H"'),
    frame(b"[1]"),
    frame(b"{}"),
    frame(b"null"),
    frame(b"\xff"),
    frame(b"[" * 4000),
    frame(json.dumps(GOOD | {"token": "é"}).encode()),
    frame(json.dumps(GOOD | {"token": "\ud800"}).encode()),
    frame(json.dumps(GOOD | {"token": None}).encode()),
    frame(json.dumps(GOOD | {"token": ""}).encode()),
    frame(json.dumps(GOOD | {"rank": PROCESSES}).encode()),
    frame(json.dumps(GOOD | {"rank": -1}).encode()),
    frame(json.dumps(GOOD | {"rank": True}).encode()),
    frame(json.dumps(GOOD | {"rank": "1"}).encode()),
    frame(json.dumps(GOOD | {"more": 1}).encode()),
    frame(json.dumps(GOOD).encode(), ENDED),
    frame(b"x" * 5000)[:100],
    b"GET / HTTP/1.1\r\n\r\n",
    frame(json.dumps(GOOD).encode()) + frame(b"{}", ENDED),
    frame(json.dumps(GOOD).encode()) + frame(b"[" * 100_000, ENDED),
]


@pytest.mark.parametrize("data", STRANGE, ids=range(len(STRANGE)))
def test_what_no_shim_sends_ends_the_connection(data):
    assert said(data) is None


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.binary(min_size=1, max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*GOOD, "x"]), inner),
        ).map(lambda value: frame(json.dumps(value).encode())),
    )
)
def test_no_stranger_gets_in(data):
    assert said(data) in (None, [])


def test_a_report_of_the_end_is_read_with_the_hello():
    end = frame(json.dumps({"status": 3, "stopped": False}).encode(), ENDED)
    assert said(frame(json.dumps(GOOD).encode()) + end) == [Hello(1, "node1"), Ended(3, False)]


def test_a_job_outlives_strangers(tmp_path):
    """More silent connections than tfddlrun keeps, and wrong ones, before and after the ranks have connected."""
    code = f"import os, time\nprint('up', flush=True)\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(.01)"
    with running(["-np", "2", sys.executable, "-c", code]) as job:
        port = port_of(job)
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
        for stranger, data in zip(
            strangers, [frame(b"7"), frame(b"{}"), b"GET / HTTP/1.1\r\n\r\n"], strict=False
        ):
            stranger.sendall(data)
        for _ in range(2):
            assert b"up" in job.process.stdout.readline()
        strangers += [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
        (tmp_path / "go").touch()
        ended = job.finish()
    assert (ended.code, ended.stderr) == (0, "")
    for stranger in strangers:
        stranger.close()


@pytest.mark.slow
def test_a_silent_connection_is_closed():
    code = "import time; print('up', flush=True); time.sleep(500)"
    with running(["-np", "1", sys.executable, "-c", code]) as job:
        with socket.create_connection(("127.0.0.1", port_of(job)), timeout=120) as stranger:
            assert stranger.recv(1) == b""
        job.process.terminate()
        assert job.finish().code == 143


def port_of(job) -> int:
    """The port in the environment of the job's mpirun."""
    while True:
        for pid in job.processes():
            with contextlib.suppress(OSError):
                for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    name, _, value = variable.partition(b"=")
                    if name.decode() == VARIABLE:
                        return json.loads(value)["port"]
        time.sleep(0.01)
