"""The lab's switch keeps its promises: delay, rate, and a link from each host to each."""

import re
import subprocess
import sys

import pytest

from tests.hosts.support import lab_or_skip
from tfddl.bench import relay

# Host A measures round trips to each other host, by TCP; then host B measures what it receives.
PROGRAM = """
import os, socket, subprocess, sys, time

SERVER = '''
import socket, time
with socket.create_server(("", 7000)) as listener:
    print("ready", flush=True)
    peer, _ = listener.accept()
peer.sendall(peer.recv(4))
while (data := peer.recv(4)) == b"ping":
    peer.sendall(data)
received, begun = 0, 0.0
while data := peer.recv(1 << 20):
    received += len(data)
    if not begun and received > 4e6:  # The window is open by now.
        begun, before = time.perf_counter(), received
if begun:
    print("rate", (received - before) * 8 / (time.perf_counter() - begun))
'''

rounds, megabytes, *hosts = sys.argv[1:]
agent = os.environ["PRTE_MCA_plm_ssh_agent"]
for host in hosts:
    command = [agent, host, f"{sys.executable} -S -c '{SERVER}'"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    server.stdout.readline()
    peer = socket.create_connection((host, 7000))
    times = []
    for _ in range(int(rounds) + 1):
        begun = time.perf_counter()
        peer.sendall(b"ping")
        assert peer.recv(4) == b"ping"
        times.append(time.perf_counter() - begun)
    print("trip", host, sorted(times)[len(times) // 2], flush=True)
    peer.sendall(b"bulk" + bytes(1000000 * int(megabytes)))
    peer.close()
    print(server.communicate()[0].strip(), flush=True)
"""


@pytest.fixture
def measured(tmp_path):
    """Runs the program in a lab. Returns the median round trip to each host in seconds, and the rates in bits per second."""

    def run(rate, delay, hosts, megabytes):
        lab = lab_or_skip(tmp_path, rate, delay, hosts)
        names = [f"host{letter}" for letter in "BCDEFGH"[: hosts - 1]]
        command = [*lab, sys.executable, "-S", "-c", PROGRAM, "8", str(megabytes), *names]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        assert "left running" not in result.stdout
        trips = {host: float(time) for host, time in re.findall(r"trip (\w+) (\S+)", result.stdout)}
        assert list(trips) == names
        return trips, [float(each) for each in re.findall(r"rate (\S+)", result.stdout)]

    return run


def is_rate(measured, rate):
    """Whether a link has been no faster than promised, and not much slower: other programs use the cores too."""
    return 0.5 * rate < measured < 1.1 * rate


def test_delay_and_rate(measured):
    trips, (rate,) = measured("100mbit", "20ms", 2, 20)
    assert 0.04 <= trips["hostB"] < 0.08, "a round trip is twice the delay, and more on a busy machine"
    assert is_rate(rate, 100e6)


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "megabits"), [(4, 200), (8, 100)])
def test_more_hosts(measured, hosts, megabits):
    trips, rates = measured(f"{megabits}mbit", "5ms", hosts, 8)
    assert all(0.01 <= trip < 0.04 for trip in trips.values()), trips
    assert len(rates) == hosts - 1 and all(is_rate(each, megabits * 1e6) for each in rates), rates


@pytest.mark.slow
def test_more_hosts_without_a_delay(measured):
    trips, rates = measured("200mbit", "", 3, 8)
    assert all(trip < 0.03 for trip in trips.values()), trips
    assert len(rates) == 2 and all(is_rate(each, 200e6) for each in rates), rates


def test_numbers_as_tc_writes_them():
    assert [relay.seconds(text) for text in ("20ms", "500us", "1s")] == [0.02, 0.0005, 1.0]
    assert [relay.bytes_per_second(text) for text in ("1gbit", "100mbit", "-")] == [
        125e6,
        12.5e6,
        float("inf"),
    ]
    with pytest.raises(ValueError, match="write 20ms"):
        relay.seconds("20")
    with pytest.raises(ValueError, match="write 1gbit"):
        relay.bytes_per_second("100")


def test_a_full_link_drops():
    """50 ms of frames wait for a link: 7 of 8 ms each from each of three hosts, and 14 of these 21 to the fourth."""
    frame = bytes([2, 0, 0, 0, 0, 3]) + bytes(1000 - relay.FRAMING - 6)
    switch = relay.Switch([0, 1, 2, 3], rate=125e3, delay=1.0)
    arrived = []
    switch._write = lambda receiver, data: arrived.append(receiver)
    for sender in range(3):
        for _ in range(20):
            switch._take(sender, frame, now=0.0)
    assert len(switch._events) == 3 * 7
    switch._forward(now=0.1)
    assert [moment for moment, *_ in sorted(switch._events)] == pytest.approx(
        [1 + 0.008 * number for number in range(1, 15)]
    )
    switch._forward(now=1.0241)
    assert arrived == [3, 3, 3]
