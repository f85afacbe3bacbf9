"""The lab's switch keeps its promises: delay, rate, and a link from each host to each."""

import re
import subprocess
import sys

import pytest

from tests.harness import long, slow
from tests.hosts.support import lab_or_skip
from tfddl.bench import relay

# Host A measures round trips to each other host, by TCP. Then host A sends bytes, and the other host looks at its clock once
# it has all of them. The hosts have one clock, and the time begins before the first byte is sent. So a process that runs
# late lowers the rate, and never raises it. How slow a link is depends on the other programs of this machine.
PROGRAM = """
import os, socket, subprocess, sys, time

SERVER = '''
import socket, time
with socket.create_server(("", 7000)) as listener:
    print("ready", flush=True)
    peer, _ = listener.accept()
while (data := peer.recv(4)) == b"ping":
    peer.sendall(data)
while data := peer.recv(1 << 20):
    pass
print(time.monotonic())
'''

def measure(host, size):
    command = [os.environ["PRTE_MCA_plm_ssh_agent"], host, f"{sys.executable} -S -c '{SERVER}'"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    server.stdout.readline()
    peer = socket.create_connection((host, 7000))
    times = []
    for _ in range(9):
        begun = time.monotonic()
        peer.sendall(b"ping")
        assert peer.recv(4) == b"ping"
        times.append(time.monotonic() - begun)
    begun = time.monotonic()
    peer.sendall(b"bulk" + bytes(size))
    peer.close()
    return min(times), size * 8 / (float(server.communicate()[0]) - begun)

for host in sys.argv[2:]:
    print("link", host, *measure(host, int(sys.argv[1])), flush=True)
"""


@pytest.fixture
def measured(tmp_path):
    """Runs the program in a lab. Returns the shortest round trip to each host in seconds, and its rate, 1 as promised."""

    def run(megabits, delay, hosts, megabytes):
        lab = lab_or_skip(tmp_path, f"{megabits}mbit", delay, hosts)
        names = [f"host{letter}" for letter in "BCDEFGH"[: hosts - 1]]
        command = [*lab, sys.executable, "-S", "-c", PROGRAM, str(1_000_000 * megabytes), *names]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        assert "left running" not in result.stdout
        links = re.findall(r"link (\w+) (\S+) (\S+)", result.stdout)
        assert [host for host, *_ in links] == names
        return [float(trip) for _, trip, _ in links], [float(rate) / 1e6 / megabits for *_, rate in links]

    return run


def test_delay_and_rate(measured):
    trips, rates = measured(100, "20ms", 2, 4)
    assert trips[0] >= 0.04, "a round trip is twice the delay, and more on a busy machine"
    assert rates[0] < 1


@pytest.mark.parametrize(("hosts", "megabits"), [slow(4, 200), long(8, 100)])
def test_more_hosts(measured, hosts, megabits):
    trips, rates = measured(megabits, "5ms", hosts, 4)
    assert min(trips) >= 0.01, trips
    assert max(rates) < 1, rates


@pytest.mark.long
def test_more_hosts_without_a_delay(measured):
    _, rates = measured(200, "", 3, 4)
    assert max(rates) < 1, rates


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


FRAME = 1000 - relay.FRAMING
"""Bytes of a frame that takes 8 ms on a link of 1 Mbit/s."""


def frame_to(host):
    return bytes([2, 0, 0, 0, 0, host]) + bytes(FRAME - 6)


@pytest.mark.parametrize("receiver", range(4))
def test_a_full_link_drops(receiver):
    """50 ms of frames wait for a link: 7 of 8 ms each from each of three hosts, and 14 of these 21 to the fourth."""
    switch = relay.Switch([0, 1, 2, 3], rate=125e3, delay=1.0)
    arrived = []
    switch._write = lambda receiver, data: arrived.append(receiver)
    for sender in {0, 1, 2, 3} - {receiver}:
        for _ in range(20):
            switch._take(sender, frame_to(receiver), now=0.0)
    assert len(switch._events) == 3 * 7
    switch._forward(now=0.1)
    assert [moment for moment, *_ in sorted(switch._events)] == pytest.approx(
        [1 + 0.008 * number for number in range(1, 15)]
    )
    switch._forward(now=1.0241)
    assert arrived == [receiver] * 3


def test_links_share_no_limit():
    """Each of four hosts sends five frames to the next at once: all arrive as those of one sender would."""
    switch = relay.Switch([0, 1, 2, 3], rate=125e3, delay=1.0)
    for _ in range(5):
        for sender in range(4):
            switch._take(sender, frame_to((sender + 1) % 4), now=0.0)
    switch._forward(now=0.1)
    moments = {host: [] for host in range(4)}
    for moment, _, host, _ in sorted(switch._events):
        moments[host].append(moment)
    for host in range(4):
        assert moments[host] == pytest.approx([1 + 0.008 * number for number in range(1, 6)])
